package cli_test

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/cli"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
)

// A data directory that another control plane holds is left as it is: tokens in it that the other
// does not know would lock out every command that reads them there.
func TestNothingIsWrittenIntoADirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	store, err := localstore.Open(dir, slog.New(slog.DiscardHandler), localstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	before, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	code := cli.Main([]string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0"},
		cli.Streams{In: &out, Out: &out, Err: &out}, cli.Build{Version: "test"})
	if code == 0 || !strings.Contains(out.String(), "is in use by another process") {
		t.Errorf("%d: %s", code, &out)
	}
	after, err := os.ReadDir(dir)
	if err != nil || len(after) != len(before) {
		t.Errorf("there were %v, and now %v, %v", before, after, err)
	}
}

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
