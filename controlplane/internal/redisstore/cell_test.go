package redisstore_test

import (
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/storetest"
	"github.com/weir-proxy/weir/test/redistest"
)

func TestCells(t *testing.T) {
	s := open(t, redistest.Start(t))
	storetest.RunCell(t, s.Region())
	storetest.RunCell(t, s.Document())
}
