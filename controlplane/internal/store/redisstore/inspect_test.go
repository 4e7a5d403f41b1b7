package redisstore

import (
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
