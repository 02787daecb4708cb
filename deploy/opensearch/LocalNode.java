import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.opensearch.analysis.common.CommonAnalysisPlugin;
import org.opensearch.cluster.service.ClusterService;
import org.opensearch.common.logging.LogConfigurator;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.index.mapper.MapperExtrasPlugin;
import org.opensearch.index.reindex.ReindexPlugin;
import org.opensearch.knn.plugin.KNNPlugin;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.painless.PainlessPlugin;
import org.opensearch.plugins.Plugin;
import org.opensearch.transport.Netty4Plugin;

/**
 * One OpenSearch node on loopback, with the plugins that an index of chunks needs, on the class path.
 *
 * <p>Arguments: the directory of its data, and the HTTP port. SIGTERM ends it in order.
 */
public final class LocalNode extends Node {
  private static final String NAME = "local";
  private static final List<Class<? extends Plugin>> PLUGINS =
      List.of(
          Netty4Plugin.class,
          CommonAnalysisPlugin.class,
          MapperExtrasPlugin.class,
          PainlessPlugin.class,
          ReindexPlugin.class,
          KNNPlugin.class);

  private LocalNode(Environment environment) {
    super(environment, PLUGINS, true);
  }

  /** Only names the node in log lines, and may be called once a JVM. */
  @Override
  protected void configureNodeAndClusterIdStateListener(ClusterService service) {}

  public static void main(String[] arguments) throws Exception {
    Path home = Path.of(arguments[0]).toAbsolutePath();
    Path config = Files.createDirectories(home.resolve("config"));
    Settings settings =
        Settings.builder()
            .put("cluster.name", "turnwise-" + NAME)
            .put("node.name", NAME)
            .put("path.home", home)
            .put("path.data", Files.createDirectories(home.resolve("data")))
            .put("path.logs", Files.createDirectories(home.resolve("logs")))
            .put("discovery.type", "single-node")
            .put("network.host", "127.0.0.1")
            .put("http.port", arguments[1])
            .put("transport.port", "0")
            // A full disk of a workstation must not make the index read-only at 95 %.
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            // An index is made with its mapping, or not at all.
            .put("action.auto_create_index", false)
            .build();
    LogConfigurator.configureWithoutConfig(settings);
    Environment environment =
        InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), config, () -> NAME);
    LocalNode node = new LocalNode(environment);
    Runtime.getRuntime().addShutdownHook(new Thread(() -> end(node)));
    node.start();
    System.out.println("ready http://127.0.0.1:" + arguments[1]);
    new CountDownLatch(1).await();
  }

  private static void end(LocalNode node) {
    try {
      node.close();
      node.awaitClose(10, TimeUnit.SECONDS);
    } catch (Exception failure) {
      System.err.println("the node did not close in order: " + failure);
    }
  }
}
