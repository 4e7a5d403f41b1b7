package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Sentinels are a primary, its replica, and three Sentinels that watch them.
type Sentinels struct {
	Primary, Replica *Server
	// Watchers are the Sentinels; two must agree.
	Watchers []*Server
}

// MasterName is the Sentinels' name for the watched servers.
const MasterName = "weir"

// StartSentinels starts them all; the options are for the primary and the replica. They end with
// the test.
func StartSentinels(t testing.TB, options ...string) *Sentinels {
	t.Helper()
	here := func(options ...string) *Server { return Start(t, options...) }
	return startSentinels(t, here, here, options)
}

// StartSentinelsOn does the same as StartSentinels, for a primary and a replica on these disks.
func StartSentinelsOn(t testing.TB, primary, replica *Disk, options ...string) *Sentinels {
	t.Helper()
	return startSentinels(t, primary.Start, replica.Start, options)
}

func startSentinels(t testing.TB, primary, replica func(...string) *Server, options []string) *Sentinels {
	t.Helper()
	options = append([]string{"--repl-diskless-sync-delay", "0"}, options...)
	s := &Sentinels{Primary: primary(options...)}
	s.Replica = replica(append(options, "--replicaof", fmt.Sprintf("127.0.0.1 %d", s.Primary.port))...)
	s.Primary.awaitReplica()
	for range 3 {
		s.Watchers = append(s.Watchers, s.watcher(t))
	}
	for _, w := range s.Watchers {
		w.await("slaves=1,sentinels=3", "INFO", "sentinel")
	}
	return s
}

func (s *Sentinels) watcher(t testing.TB) *Server {
	t.Helper()
	dir, known := t.TempDir(), 0
	return launch(t, nil, func(port int) []string {
		path := filepath.Join(dir, "sentinel.conf") // Sentinels keep their state in it.
		if port == known {
			return []string{path, "--sentinel"}
		}
		known = port
		text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %q\nsentinel monitor %s 127.0.0.1 %d 2\n", port, dir,
			MasterName, s.Primary.port) +
			fmt.Sprintf("sentinel down-after-milliseconds %s %d\nsentinel failover-timeout %s 5000\n", MasterName,
				NodeTimeout.Milliseconds(), MasterName)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{path, "--sentinel"}
	})
}

// URL names the Sentinels and the servers that they watch.
func (s *Sentinels) URL() string {
	url := "redis://" + s.Watchers[0].Addr() + "/0?master_name=" + MasterName
	for _, w := range s.Watchers[1:] {
		url += "&addr=127.0.0.1:" + strconv.Itoa(w.port)
	}
	return url
}
