package helenus;

import java.rmi.NotBoundException;
import java.rmi.RemoteException;
import java.rmi.registry.LocateRegistry;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.naming.Context;
import javax.naming.InitialContext;
import javax.naming.NamingException;
import javax.naming.spi.NamingManager;

/**
 * Cassandra's nodetool on a Java without the module jdk.naming.rmi, as a wheel has it. All that nodetool looks up is
 * where JMX is: rmi://HOST:PORT/jmxrmi.
 */
public final class Nodetool {
    private static final Pattern PLACE = Pattern.compile("rmi://([^:/]+):(\\d+)/(\\w+)");

    private Nodetool() {}

    public static void main(String[] arguments) throws Exception {
        Context names = new Names();
        NamingManager.setInitialContextFactoryBuilder(wanted -> given -> names);
        Class.forName("org.apache.cassandra.tools.NodeTool")
                .getMethod("main", String[].class)
                .invoke(null, (Object) arguments);
    }

    private static final class Names extends InitialContext {
        Names() throws NamingException {
            super(true);
        }

        @Override
        public Object lookup(String name) throws NamingException {
            Matcher place = PLACE.matcher(name);
            if (!place.matches()) {
                throw new NamingException("not a place of JMX: " + name);
            }
            try {
                return LocateRegistry.getRegistry(place.group(1), Integer.parseInt(place.group(2))).lookup(place.group(3));
            } catch (RemoteException | NotBoundException failure) {
                NamingException error = new NamingException(failure.getMessage());
                error.setRootCause(failure);
                throw error;
            }
        }
    }
}
