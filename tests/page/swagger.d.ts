// Swagger UI, which the page of the interface's documentation loads as a classic script: as much of it as that page uses.

interface OpenApiDocument {
  info: { title: string };
}

interface SwaggerRequest {
  headers: Record<string, string>;
}

declare function SwaggerUIBundle(options: {
  spec: OpenApiDocument;
  dom_id: string;
  validatorUrl: null;
  requestInterceptor: (request: SwaggerRequest) => SwaggerRequest;
}): void;
