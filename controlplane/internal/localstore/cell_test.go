package localstore_test

import (
	"log/slog"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/localstore"
	"github.com/weir-proxy/weir/controlplane/internal/storetest"
)

func TestRegionCell(t *testing.T) {
	dir := t.TempDir()
	s, err := localstore.Open(dir, slog.New(slog.DiscardHandler), localstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	storetest.RunCell(t, s.Region())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = localstore.Open(dir, slog.New(slog.DiscardHandler), localstore.Options{}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if value, revision, _, err := s.Region().Load(t.Context()); err != nil || revision != 3 || len(value) != 1 {
		t.Errorf("after a restart it holds %q at revision %d: %v", value, revision, err)
	}
}
