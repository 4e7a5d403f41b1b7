package errs_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
)

func TestCodes(t *testing.T) {
	gone := errs.New(errs.NotFound, "there is none", "there is no thing: make a thing")
	for name, c := range map[string]struct {
		err    error
		code   errs.Code
		detail string
		text   string
	}{
		"an error": {gone, errs.NotFound, "there is no thing: make a thing", "there is none"},
		"wrapped": {fmt.Errorf("%w: 7", gone), errs.NotFound, "there is no thing: make a thing",
			"there is none: 7"},
		"a code alone": {fmt.Errorf("writing: %w", errs.Conflict), errs.Conflict, "",
			"writing: changed-meanwhile"},
		"without a cause": {&errs.Error{Code: errs.BadRequest, Detail: "no"}, errs.BadRequest, "no", "no"},
		"the outermost of two": {&errs.Error{Code: errs.Unreadable, Detail: "old", Cause: gone}, errs.Unreadable, "old",
			"there is none"},
		"neither": {errors.New("broken"), "", "", "broken"},
	} {
		code, detail, ok := errs.CodeOf(c.err)
		if code != c.code || detail != c.detail || ok != (c.code != "") || c.err.Error() != c.text {
			t.Errorf("%s: %q %q %v, reads %q", name, code, detail, ok, c.err)
		}
		if ok && !errors.Is(c.err, c.code) || errors.Is(c.err, errs.Internal) {
			t.Errorf("%s: errors.Is does not compare the code", name)
		}
	}
	if !errors.Is(fmt.Errorf("%w: 7", gone), gone) {
		t.Error("the error is not itself")
	}
}
