package redisstore_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// Whatever a Redis holds in place of consumers' hashes is reported as an error.
func TestAHashOfAConsumerThatIsNone(t *testing.T) {
	s := open(t, redistest.Start(t))
	const held = "weir:{consumers}:records"
	for _, field := range []string{"", "alice", strings.Repeat("0", 30), strings.Repeat("0", 31),
		strings.Repeat("0", 34), strings.Repeat("0", 100), strings.Repeat("g", 32)} {
		if err := s.Client().HSet(t.Context(), held, field, "{}").Err(); err != nil {
			t.Fatal(err)
		}
		_, _, err := consumers.Kept{In: s}.ListConsumers(t.Context(), consumers.List{Limit: 10})
		if err == nil || !strings.Contains(err.Error(), held) {
			t.Errorf("%q: the error is %v, want one that names the key", field, err)
		}
		if err := s.Client().Del(t.Context(), held).Err(); err != nil {
			t.Fatal(err)
		}
	}
}
