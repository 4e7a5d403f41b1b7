// Command run is `make run`: Envoy with the filter, the control plane and a small upstream on this
// machine, until Ctrl-C. It runs in the repository's root, with the files that `make build` made.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `Usage: build/run

Envoy with the filter, the control plane and a small upstream on this machine,
until Ctrl-C: what make run starts once make build has run. It takes no
arguments; these variables change it:

  KEEP=1                    go on with the state of the last run
  WEIR_REDIS_URL            Redis for the state, in place of a file
  WEIR_TOKENS_FILE          further tokens, as weir token new prints them
  WEIR_RUN_DIR              where state, logs and configuration go: .run
  WEIR_PORT_ENVOY           10000
  WEIR_PORT_ADMIN           9901
  WEIR_PORT_CONTROL_PLANE   8080
`

// answerArguments answers arguments that need no run, with the exit code. It reports false for
// other arguments.
func answerArguments(args []string, out, err io.Writer) (code int, answered bool) {
	switch {
	case len(args) == 0:
		return 0, false
	case args[0] == "--help" || args[0] == "-h" || args[0] == "-help":
		fmt.Fprint(out, usage)
		return 0, true
	}
	fmt.Fprintf(err, "make run: there is no argument %q; build/run --help lists the settings\n", args[0])
	return 2, true
}

func main() {
	if code, answered := answerArguments(os.Args[1:], os.Stdout, os.Stderr); answered {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// The first signal ends everything in order. A second one means that the user does not want to
	// wait: it ends this process as signals do, and the kernel ends the others with it.
	context.AfterFunc(ctx, stop)

	s, err := readSettings(os.Getenv)
	if err == nil {
		err = runAll(ctx, s, os.Stdout)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "make run:", err)
		os.Exit(1)
	}
}
