"""Which routes of knowledge flow leave an event in the audit log, and why the others do not."""

from backend_kit.auth import AuditAction

_READS = "changes nothing; what it finds of others' is noted as read_by_share"

AUDITED: dict[str, AuditAction] = {
    "GET /audit/events": AuditAction.AUDIT_EXPORTED,
    "DELETE /fast/ingest/{document_uid}": AuditAction.ATTACHMENT_DELETED,
    "DELETE /fast/ingest": AuditAction.ATTACHMENT_DELETED,
    "DELETE /tags/{tag_id}": AuditAction.LIBRARY_DELETED,
    "PUT /tags/{tag_id}/access": AuditAction.LIBRARY_SHARED,
    "PUT /documents/{uid}/tags": AuditAction.DOCUMENT_PLACED,
    "DELETE /documents/{uid}": AuditAction.DOCUMENT_DELETED,
}
NOT_AUDITED: dict[str, str] = {
    "POST /vector/search": _READS,
    "POST /vector/rerank": "orders what the caller sent",
    "POST /documents/browse": "reads no text",
    "POST /upload-process-documents": "the document itself says whose it is, since when and of which content",
    "POST /documents/{uid}/ingest": "the same file of the same document",
    "POST /fast/text": "keeps nothing",
    "POST /fast/image": "keeps nothing",
    "POST /fast/ingest": "an attachment, which its owner alone sees",
    "POST /tags": "a library that nobody else reads",
    "PUT /tags/{tag_id}": "a name; who reads it stays",
    "PUT /document/metadata/{uid}": "found or not, by those who could read it anyway",
    "POST //mcp": _READS,
    "DELETE //mcp": "a session of the protocol",
}
