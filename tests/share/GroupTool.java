// kafka-share-groups, any number of times in one process.
//
// Each line of stdin has the arguments of one run, separated by tabs. The answer is a line of JSON:
// exit status, what was printed on stdout, and what was printed on stderr.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.tools.consumer.group.ShareGroupCommand;

public class GroupTool {
    private static final class Ended extends RuntimeException {
        final int status;

        Ended(int status, String message) {
            super(message);
            this.status = status;
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        Exit.setExitProcedure((status, message) -> {
            throw new Ended(status, message);
        });
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            ByteArrayOutputStream complained = new ByteArrayOutputStream();
            System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
            int status = run(line.split("\t"));
            out.println("{\"status\":" + status + ",\"out\":\"" + encoded(printed)
                + "\",\"err\":\"" + encoded(complained) + "\"}");
            out.flush();
        }
    }

    private static int run(String[] args) {
        try {
            ShareGroupCommand.main(args);
            return 0;
        } catch (Ended ended) {
            if (ended.getMessage() != null) {
                System.err.println(ended.getMessage());
            }
            return ended.status;
        } catch (RuntimeException uncaught) {
            System.err.println(uncaught);
            return 1;
        }
    }

    private static String encoded(ByteArrayOutputStream bytes) {
        return Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
