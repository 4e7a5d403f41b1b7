package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
)

func etag(version uint64) string { return `"` + strconv.FormatUint(version, 10) + `"` }

// formTag returns the ETag of a version in a form that is not the usual form of its route: a cache
// must not confuse two forms. If-Match takes the ETag of any form.
func formTag(version uint64, format policydoc.Format) string {
	form := "-json"
	if format == policydoc.YAML {
		form = "-yaml"
	}
	return `"` + strconv.FormatUint(version, 10) + form + `"`
}

// documentHeaders returns the headers of a version's document in a form, JSON or YAML. usual is the
// form for clients that name no form.
func documentHeaders(version uint64, form, usual policydoc.Format) gen.NotModifiedResponseHeaders {
	headers := gen.NotModifiedResponseHeaders{ETag: etag(version), Vary: "Accept", CacheControl: "no-cache"}
	if form != usual {
		headers.ETag = formTag(version, form)
	}
	return headers
}

// GetPolicySet answers with the document as it was written, or as JSON if the client names JSON in
// Accept.
func (s *server) GetPolicySet(
	ctx context.Context, r gen.GetPolicySetRequestObject,
) (gen.GetPolicySetResponseObject, error) {
	// Read the newest version, from this replica's memory if the store is away.
	timed, cancel := s.atHand(ctx)
	defer cancel()
	v, away, err := s.config.Policies.Newest(timed)
	if err != nil {
		return nil, storeFailure(err)
	}
	s.noteHeld(ctx, away, s.config.Hub.Followed())
	// Answer without the document if the client has it in this form.
	form := v.Format
	if callerOf(ctx).accepts(policydoc.JSON) {
		form = policydoc.JSON
	}
	headers := documentHeaders(v.Number, form, v.Format)
	if r.Params.IfNoneMatch == headers.ETag {
		return gen.GetPolicySet304Response{Headers: headers}, nil
	}
	// Convert the document into the form.
	if form != v.Format {
		node, err := policydoc.Parse(v.Document, v.Format)
		if err != nil {
			return nil, err
		}
		v.Document = policydoc.ToJSON(node)
	}
	return gen.GetPolicySet200AsteriskResponse{Body: bytes.NewReader(v.Document), ContentType: string(form),
		ContentLength: int64(len(v.Document)), Headers: gen.GetPolicySet200ResponseHeaders(headers)}, nil
}

// accepts reports whether the client names a media type of the format.
func (who caller) accepts(format policydoc.Format) bool {
	for _, part := range strings.Split(who.accept, ",") {
		if media, _, err := mime.ParseMediaType(part); err == nil && mediaTypes[media] == format {
			return true
		}
	}
	return false
}

// PutPolicySet replaces the document.
func (s *server) PutPolicySet(
	ctx context.Context, r gen.PutPolicySetRequestObject,
) (gen.PutPolicySetResponseObject, error) {
	change, err := changeOf(ctx, "policyset.put", policySetResource,
		terms{r.Params.IfMatch, r.Params.DryRun, r.Params.Nodes, r.Params.AbortIf})
	if err != nil {
		return nil, err
	}
	change.Document, change.Format, err = readDocument(ctx, r.Body)
	if err != nil {
		return nil, err
	}
	out, err := s.config.Policies.Put(ctx, change)
	answer, err := s.answerChange(ctx, change, out, err)
	return gen.PutPolicySet200JSONResponse{ChangeJSONResponse: answer}, err
}

// terms are the parameters of every change of the policy set.
type terms struct {
	match  gen.IfMatch
	dryRun gen.DryRun
	// nodes is the share of the nodes that gets the new version; empty is all.
	nodes gen.NodeShare
	// abortIf is the rule by which it is taken back; empty is none.
	abortIf gen.AbortIf
}

// changeOf returns the change that a request describes: the replaced version, the author, the
// nodes, and whether it is a dry run.
func changeOf(ctx context.Context, action, resource string, on terms) (change policies.Change, err error) {
	change.Entry, change.DryRun = newEntry(ctx, action, resource), on.dryRun
	change.Nodes, err = shareOf(on.nodes)
	if err == nil && on.abortIf != "" && change.Nodes == policies.Everyone {
		err = badRequest("abort_if needs nodes, like nodes=25%%: a version that all nodes have is compared " +
			"with nothing")
	}
	if err == nil {
		change.AbortIf, err = ruleOf(on.abortIf)
	}
	if err != nil {
		return change, err
	}
	change.Expected, change.Any, err = ifMatch(on.match)
	return change, err
}

// readDocument reads a body that is YAML or JSON.
func readDocument(ctx context.Context, body io.Reader) (doc []byte, format policydoc.Format, err error) {
	format, err = formatOf(callerOf(ctx).contentType)
	if err != nil {
		return nil, "", err
	}
	doc, err = readBody(body)
	if err != nil {
		return nil, "", err
	}
	if format == "" {
		format = policydoc.Sniff(doc)
	}
	return doc, format, nil
}

// answerChange answers a change of the policy set.
func (s *server) answerChange(
	ctx context.Context, change policies.Change, out policies.Outcome, err error,
) (answer gen.ChangeJSONResponse, _ error) {
	if err != nil {
		return answer, storeFailure(err)
	}
	if !change.DryRun && out.Rollout == nil {
		tag := etag(out.Version)
		answer.Headers.ETag = &tag
	}
	if !change.DryRun && !out.Unchanged {
		s.config.Log.Info("policy set changed", "id", callerOf(ctx).id, "version", out.Version, "author",
			change.Entry.By, "summary", out.Summary)
	}
	if who := callerOf(ctx); who.answer != nil {
		s.noteOrders(who.answer, out.Set)
	}
	answer.Body = gen.Change{Version: out.Version, DryRun: change.DryRun, Unchanged: out.Unchanged,
		Summary: out.Summary, Diff: out.Diff, Rollout: s.describeBegun(ctx, out)}
	return answer, nil
}

var errNoPrecondition = &failure{code: errs.PreconditionRequired,
	detail: `say which version you change: If-Match with the ETag that GET returned, like "3"; ` +
		`"0" for an empty store; * for whatever there is`}

// ifMatch reads which version a change replaces.
func ifMatch(text gen.IfMatch) (version uint64, any bool, err error) {
	switch {
	case text == "*":
		return 0, true, nil
	case len(text) > 2 && text[0] == '"' && text[len(text)-1] == '"':
		number, _, _ := strings.Cut(text[1:], "-")
		version, err = strconv.ParseUint(strings.TrimSuffix(number, `"`), 10, 53)
		forms := []string{etag(version), formTag(version, policydoc.JSON), formTag(version, policydoc.YAML)}
		if err == nil && slices.Contains(forms, text) {
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
	case "application/octet-stream", "text/plain", "application/x-www-form-urlencoded": // tools' default
		return "", nil
	}
	return "", &failure{code: errs.UnsupportedMediaType,
		detail: "policies are application/yaml or application/json"}
}

// mediaTypes are the names by which the formats are known.
var mediaTypes = map[string]policydoc.Format{
	"application/json": policydoc.JSON, "application/yaml": policydoc.YAML, "application/x-yaml": policydoc.YAML,
	"text/yaml": policydoc.YAML, "text/x-yaml": policydoc.YAML, "application/vnd.yaml": policydoc.YAML,
}

// plainBody refuses encoded bodies: a bound on bytes must also bound the decoded body.
func plainBody(r *http.Request) error {
	if e := r.Header.Get(echo.HeaderContentEncoding); e != "" && !strings.EqualFold(e, "identity") {
		return &failure{code: errs.UnsupportedMediaType,
			detail: "send the body without Content-Encoding"}
	}
	return nil
}

// readBody reads a request's body of at most limit bytes.
func (s *server) readBody(c echo.Context, limit int64) ([]byte, error) {
	return readBody(http.MaxBytesReader(c.Response().Writer, c.Request().Body, limit))
}

// readBody reads a body that is bounded already. If the body is too large, the error is an
// *http.MaxBytesError.
func readBody(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(r)
	var tooLarge *http.MaxBytesError
	if err != nil && !errors.As(err, &tooLarge) {
		return nil, &failure{code: errs.BadRequest, detail: "the body could not be read", cause: err}
	}
	return body, err
}
