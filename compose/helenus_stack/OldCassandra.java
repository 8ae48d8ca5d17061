package helenus;

import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.security.ProtectionDomain;
import java.util.Set;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;
import sun.misc.Unsafe;

/**
 * Lets Cassandra 3.11, which is made for Java 8, start on Java 11: two of its classes call what that has not. It is for
 * tests alone. Buffers are freed as Java 11 offers it; locks that Cassandra takes without a block are left out, which
 * costs it speed where many write to one partition.
 */
public final class OldCassandra implements ClassFileTransformer {
    private static final Set<String> CLASSES =
            Set.of("org/apache/cassandra/io/util/FileUtils", "org/apache/cassandra/utils/concurrent/Locks");
    private static final Unsafe UNSAFE = unsafe();

    public static void premain(String arguments, Instrumentation instrumentation) {
        instrumentation.addTransformer(new OldCassandra());
    }

    /** Frees a direct buffer; one that is a part of another is freed with that. */
    public static void clean(Object buffer) {
        try {
            UNSAFE.invokeCleaner((ByteBuffer) buffer);
        } catch (IllegalArgumentException isPart) {
            return;
        }
    }

    @Override
    public byte[] transform(
            ClassLoader loader, String name, Class<?> redefined, ProtectionDomain domain, byte[] content) {
        if (!CLASSES.contains(name)) {
            return null;
        }
        ClassReader reader = new ClassReader(content);
        ClassWriter writer = new ClassWriter(reader, ClassWriter.COMPUTE_MAXS);
        reader.accept(
                new ClassVisitor(Opcodes.ASM5, writer) {
                    @Override
                    public MethodVisitor visitMethod(
                            int access, String method, String descriptor, String signature, String[] exceptions) {
                        return new Calls(super.visitMethod(access, method, descriptor, signature, exceptions));
                    }
                },
                0);
        return writer.toByteArray();
    }

    /** Replaces the calls of a method. */
    private static final class Calls extends MethodVisitor {
        Calls(MethodVisitor next) {
            super(Opcodes.ASM5, next);
        }

        @Override
        public void visitMethodInsn(int opcode, String owner, String name, String descriptor, boolean isInterface) {
            if (owner.equals("sun/nio/ch/DirectBuffer") && name.equals("cleaner")) {
                return; // the buffer stays on the stack in its cleaner's place
            } else if (owner.equals("sun/misc/Cleaner") && name.equals("clean")) {
                String self = "helenus/OldCassandra";
                super.visitMethodInsn(Opcodes.INVOKESTATIC, self, "clean", "(Ljava/lang/Object;)V", false);
            } else if (owner.equals("sun/misc/Unsafe") && name.startsWith("monitor")) {
                super.visitInsn(Opcodes.POP2);
            } else {
                super.visitMethodInsn(opcode, owner, name, descriptor, isInterface);
            }
        }
    }

    private static Unsafe unsafe() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (Unsafe) field.get(null);
        } catch (ReflectiveOperationException error) {
            throw new LinkageError("no sun.misc.Unsafe", error);
        }
    }
}
