import java.io.FileInputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.security.KeyStore;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.UnaryOperator;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import org.opensearch.common.settings.Settings;
import org.opensearch.common.util.concurrent.ThreadContext;
import org.opensearch.core.rest.RestStatus;
import org.opensearch.http.HttpServerTransport;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.ActionPlugin;
import org.opensearch.plugins.Plugin;
import org.opensearch.plugins.SecureHttpTransportSettingsProvider;
import org.opensearch.plugins.SecureSettingsFactory;
import org.opensearch.plugins.SecureTransportSettingsProvider;
import org.opensearch.plugins.TransportExceptionHandler;
import org.opensearch.rest.BytesRestResponse;
import org.opensearch.rest.RestHandler;
import org.opensearch.transport.Netty4Plugin;

/**
 * A node of OpenSearch with its HTTP interface, until standard input ends: HOME PORT [KEYSTORE USER:PASSWORD].
 *
 * With a keystore (PKCS #12, its password "helenus") it speaks TLS and asks for a login.
 */
public final class OpenSearchNode extends Node {
    private static String keystore;
    private static String login;

    private OpenSearchNode(Settings settings, List<Class<? extends Plugin>> plugins) {
        super(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "node"), plugins, true);
    }

    public static void main(String[] arguments) throws Exception {
        boolean isSecure = arguments.length > 2;
        Settings settings = Settings.builder()
            .put("path.home", arguments[0])
            .put("http.port", arguments[1])
            .put("network.host", "127.0.0.1")
            .put("transport.port", 0)
            .put("transport.type", "netty4")
            .put("http.type", isSecure ? "netty4-secure" : "netty4")
            .put("discovery.type", "single-node")
            .put("http.max_content_length", "10mb") // as small machines of clouds have it
            .put("node.store.allow_mmap", false)
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        if (isSecure) {
            keystore = arguments[2];
            login = "Basic " + Base64.getEncoder().encodeToString(arguments[3].getBytes(StandardCharsets.UTF_8));
        }
        List<Class<? extends Plugin>> plugins =
            isSecure ? List.of(Netty4Plugin.class, Guard.class) : List.of(Netty4Plugin.class);
        try (Node node = new OpenSearchNode(settings, plugins)) {
            node.start();
            System.out.println("started");
            while (System.in.read() != -1) {
            }
        }
        System.exit(0);
    }

    /** TLS by the server's own transport, and a login for every request. */
    public static final class Guard extends Plugin implements ActionPlugin {
        @Override
        public UnaryOperator<RestHandler> getRestHandlerWrapper(ThreadContext context) {
            return handler -> (request, channel, client) -> {
                if (login.equals(request.header("Authorization"))) {
                    handler.handleRequest(request, channel, client);
                } else {
                    channel.sendResponse(new BytesRestResponse(RestStatus.UNAUTHORIZED, "Unauthorized"));
                }
            };
        }

        @Override
        public Optional<SecureSettingsFactory> getSecureSettingFactory(Settings settings) {
            return Optional.of(new SecureSettingsFactory() {
                @Override
                public Optional<SecureTransportSettingsProvider> getSecureTransportSettingsProvider(Settings settings) {
                    return Optional.empty();
                }

                @Override
                public Optional<SecureHttpTransportSettingsProvider> getSecureHttpTransportSettingsProvider(
                    Settings settings
                ) {
                    return Optional.of(new Tls());
                }
            });
        }
    }

    private static final class Tls implements SecureHttpTransportSettingsProvider {
        @Override
        public Optional<TransportExceptionHandler> buildHttpServerExceptionHandler(
            Settings settings,
            HttpServerTransport transport
        ) {
            return Optional.empty();
        }

        @Override
        public Optional<SSLEngine> buildSecureHttpServerEngine(Settings settings, HttpServerTransport transport) {
            try (InputStream file = new FileInputStream(keystore)) {
                KeyStore store = KeyStore.getInstance("PKCS12");
                store.load(file, "helenus".toCharArray());
                KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
                keys.init(store, "helenus".toCharArray());
                SSLContext context = SSLContext.getInstance("TLS");
                context.init(keys.getKeyManagers(), null, null);
                SSLEngine engine = context.createSSLEngine();
                engine.setUseClientMode(false);
                return Optional.of(engine);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
