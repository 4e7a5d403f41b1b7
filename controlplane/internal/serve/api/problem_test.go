package api_test

import (
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

func TestEveryCodeHasAStatus(t *testing.T) {
	source, err := os.ReadFile("../../ground/errs/errs.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`Code = "([a-z-]+)"`).FindAllSubmatch(source, -1)
	if len(codes) < 20 {
		t.Fatalf("found only %d codes", len(codes))
	}
	for _, code := range codes {
		if status := api.Status(errs.Code(code[1])); http.StatusText(status) == "" {
			t.Errorf("%s has the status %d", code[1], status)
		}
	}
}
