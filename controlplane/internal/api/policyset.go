package api

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/controlplane/internal/policydoc"
)

func etag(version uint64) string { return `"` + strconv.FormatUint(version, 10) + `"` }

func (s *server) getPolicySet(c echo.Context) error {
	v, err := s.Policies.Newest(c.Request().Context())
	if err != nil {
		return storeFailure(err)
	}
	if described(c, v.Number) {
		return c.NoContent(http.StatusNotModified)
	}
	if v.Format != policydoc.JSON && wantsJSON(c.Request()) {
		node, err := policydoc.Parse(v.Document, v.Format)
		if err != nil {
			return err
		}
		v.Format, v.Document = policydoc.JSON, policydoc.ToJSON(node)
	}
	return c.Blob(http.StatusOK, string(v.Format), v.Document)
}

// described sets the headers of an answer that depends on the version and on Accept, and reports whether the client has it.
func described(c echo.Context, version uint64) bool {
	header := c.Response().Header()
	header.Set("ETag", etag(version))
	header.Set("Vary", "Accept")
	header.Set("Cache-Control", "no-cache")
	return c.Request().Header.Get("If-None-Match") == etag(version)
}

// wantsJSON says whether the client asks for JSON by name; otherwise it gets the document as it was written.
func wantsJSON(r *http.Request) bool { return accepts(r, policydoc.JSON) }

// accepts says whether the client names a media type of the format.
func accepts(r *http.Request, format policydoc.Format) bool {
	for _, part := range strings.Split(r.Header.Get("Accept"), ",") {
		if media, _, err := mime.ParseMediaType(part); err == nil && mediaTypes[media] == format {
			return true
		}
	}
	return false
}

// PutAnswer is the answer to every change of the policy set, of one policy, and to a rollback.
type PutAnswer struct {
	// Version is the new version, or the one it would have been.
	Version uint64        `json:"version"`
	DryRun  bool          `json:"dry_run"`
	Summary string        `json:"summary"`
	Diff    policies.Diff `json:"diff"`
}

func (s *server) putPolicySet(c echo.Context) error {
	change, err := changeOf(c)
	if err != nil {
		return err
	}
	if change.Document, change.Format, err = s.document(c); err != nil {
		return err
	}
	out, err := s.Policies.Put(c.Request().Context(), change)
	return s.changed(c, change, out, err)
}

// changeOf reads what a change of the policy set replaces, who makes it, and whether it is only tried.
func changeOf(c echo.Context) (change policies.Change, err error) {
	change.Author = author(c)
	if change.DryRun, err = boolParam(c, "dry_run"); err != nil {
		return change, err
	}
	if change.Expected, change.Any, err = ifMatch(c.Request().Header); err != nil {
		return change, err
	}
	return change, plainBody(c.Request())
}

// document reads a body that is YAML or JSON.
func (s *server) document(c echo.Context) (doc []byte, format policydoc.Format, err error) {
	if format, err = formatOf(c.Request().Header.Get(echo.HeaderContentType)); err != nil {
		return nil, "", err
	}
	if doc, err = s.body(c, policydoc.MaxBytes); err != nil {
		return nil, "", err
	}
	if format == "" {
		format = policydoc.Sniff(doc)
	}
	return doc, format, nil
}

// changed answers a change of the policy set.
func (s *server) changed(c echo.Context, change policies.Change, out policies.Outcome, err error) error {
	if err != nil {
		return storeFailure(err)
	}
	if !change.DryRun {
		c.Response().Header().Set("ETag", etag(out.Version))
		s.Log.Info("policy set changed", "id", requestID(c), "version", out.Version, "author", change.Author, "summary", out.Summary)
	}
	return c.JSON(http.StatusOK, PutAnswer{out.Version, change.DryRun, out.Summary, out.Diff})
}

// ifMatch reads which version a change replaces.
func ifMatch(h http.Header) (version uint64, any bool, err error) {
	text := strings.TrimSpace(h.Get("If-Match"))
	switch {
	case text == "":
		return 0, false, &failure{status: http.StatusPreconditionRequired, kind: "precondition-required",
			detail: `say which version you change: If-Match with the ETag that GET returned, like "3"; "0" for an empty store; * for whatever there is`}
	case text == "*":
		return 0, true, nil
	case len(text) > 2 && text[0] == '"' && text[len(text)-1] == '"':
		if version, err = strconv.ParseUint(text[1:len(text)-1], 10, 53); err == nil {
			return version, false, nil
		}
	}
	return 0, false, badRequest(`If-Match must be one ETag like "3", or *`)
}

// formatOf reads the media type of a document; empty means that the text itself tells.
func formatOf(contentType string) (policydoc.Format, error) {
	if contentType == "" {
		return "", nil
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return "", badRequest("Content-Type is malformed")
	}
	if format, ok := mediaTypes[media]; ok {
		return format, nil
	}
	switch media {
	case "application/octet-stream", "text/plain", "application/x-www-form-urlencoded": // what tools send unasked
		return "", nil
	}
	return "", &failure{status: http.StatusUnsupportedMediaType, kind: "unsupported-media-type",
		detail: "policies are application/yaml or application/json"}
}

// mediaTypes are the names by which the formats are known.
var mediaTypes = map[string]policydoc.Format{
	"application/json": policydoc.JSON, "application/yaml": policydoc.YAML, "application/x-yaml": policydoc.YAML,
	"text/yaml": policydoc.YAML, "text/x-yaml": policydoc.YAML, "application/vnd.yaml": policydoc.YAML,
}

// plainBody refuses encoded bodies: a bound on bytes must be a bound on what they unfold to.
func plainBody(r *http.Request) error {
	if e := r.Header.Get(echo.HeaderContentEncoding); e != "" && !strings.EqualFold(e, "identity") {
		return &failure{status: http.StatusUnsupportedMediaType, kind: "unsupported-media-type",
			detail: "send the body without Content-Encoding"}
	}
	return nil
}

// body reads a request's body of at most limit bytes.
func (s *server) body(c echo.Context, limit int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(c.Response().Writer, c.Request().Body, limit))
	var tooLarge *http.MaxBytesError
	if err != nil && !errors.As(err, &tooLarge) {
		return nil, &failure{status: http.StatusBadRequest, kind: "bad-request", detail: "the body could not be read", cause: err}
	}
	return body, err
}

func boolParam(c echo.Context, name string) (bool, error) {
	switch c.QueryParam(name) {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, badRequest("%s must be true or false", name)
}
