package redisstore

import (
	"log/slog"
	"os"
	"strings"
	"testing"
)

func TestTooOld(t *testing.T) {
	for version, want := range map[string]bool{
		"6.0.16": true, "5.0.14": true, "6.2.0": false, "6.2": false, "7.0.15": false, "8.2.1": false, "10.0": false,
		"": false, "unknown": false, "255.255.255": false,
	} {
		if got := isTooOld(version); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}

func TestARedisThatIsTooOldIsRefused(t *testing.T) {
	facts := map[string]string{"redis_version": "6.0.16", "tcp_port": "6379", "maxmemory": "0"}
	err := (&Store{mayEvict: true}).checkServer(facts, slog.New(slog.DiscardHandler))
	want := "cannot use Redis: port 6379 is Redis 6.0.16, which is older than 6.2: upgrade Redis"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	facts["redis_version"] = "6.2.0"
	if err := (&Store{}).checkServer(facts, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
}

// The page for operators names the same rights.
func TestThePageNamesTheRights(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/run/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rights := range []string{ACL, SentinelACL} {
		if want := "ACL SETUSER weir on >PASSWORD " + rights + "\n"; !strings.Contains(string(page), want) {
			t.Errorf("docs/run/redis.md should have the line\n%s", want)
		}
	}
}
