package cli_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/cli"
)

// The first signal to end begins the end, the second one cuts the wait for callers short.
func TestSignals(t *testing.T) {
	first, second, stop := cli.Signals()
	defer stop()
	kill := func(s syscall.Signal) {
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
	}
	kill(syscall.SIGTERM)
	<-first.Done()
	if second.Err() != nil {
		t.Error("one signal counted as two")
	}
	kill(syscall.SIGINT)
	<-second.Done()
}
