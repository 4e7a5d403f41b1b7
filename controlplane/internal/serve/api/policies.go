package api

import (
	"bytes"
	"context"
	"fmt"
	"mime"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
)

// mergePatch is the media type of RFC 7396.
const mergePatch = "application/merge-patch+json"

// GetPolicy answers with JSON, or with YAML if the client asks for YAML by name. The ETag is the
// ETag of the whole policy set in this form.
func (s *server) GetPolicy(ctx context.Context, r gen.GetPolicyRequestObject) (gen.GetPolicyResponseObject, error) {
	timed, cancel := s.atHand(ctx)
	defer cancel()
	// Load the version.
	read := func() (policies.Version, error, error) { return s.config.Policies.Newest(timed) }
	if r.Params.Version > 0 {
		read = func() (policies.Version, error, error) { return s.config.Policies.Load(timed, r.Params.Version) }
	}
	v, away, err := read()
	if err != nil {
		return nil, storeFailure(err)
	}
	s.noteHeld(ctx, away, s.config.Hub.Followed())
	// Take the policy out of the document, in the form that the client wants.
	want, who := policydoc.JSON, callerOf(ctx)
	if who.accepts(policydoc.YAML) && !who.accepts(policydoc.JSON) {
		want = policydoc.YAML
	}
	doc, err := policydoc.Policy(v.Document, v.Format, r.Name, want)
	if active, _ := s.config.Policies.Active(); err != nil && r.Params.Version == 0 && active.Draft != nil {
		if _, drafted := active.Draft.Policy(r.Name); drafted {
			return nil, &failure{code: errs.NotFound, detail: fmt.Sprintf("policy %s is in version %d alone, which is "+
				"rolled out to a part of the Envoys: ask with version=%[2]d", r.Name, active.Draft.Version.Number)}
		}
	}
	if err != nil {
		return nil, err
	}
	// Answer, unless the client has this version and form.
	known := documentHeaders(v.Number, want, policydoc.JSON)
	if r.Params.IfNoneMatch == known.ETag {
		return gen.GetPolicy304Response{Headers: known}, nil
	}
	return gen.GetPolicy200AsteriskResponse{Body: bytes.NewReader(doc), ContentType: string(want),
		ContentLength: int64(len(doc)),
		Headers:       gen.GetPolicy200ResponseHeaders(known)}, nil
}

// PutPolicy replaces a policy or adds it at the end.
func (s *server) PutPolicy(ctx context.Context, r gen.PutPolicyRequestObject) (gen.PutPolicyResponseObject, error) {
	answer, err := s.editPolicy(ctx, "policy.put", r.Name,
		terms{r.Params.IfMatch, r.Params.DryRun, r.Params.Nodes, r.Params.AbortIf},
		func() (edit, error) {
			body, bodyFormat, err := readDocument(ctx, r.Body)
			return func(doc []byte, format policydoc.Format) ([]byte, error) {
				return policydoc.PutPolicy(doc, format, r.Name, body, bodyFormat)
			}, err
		})
	return gen.PutPolicy200JSONResponse{ChangeJSONResponse: answer}, err
}

// PatchPolicy changes a policy by a JSON merge patch.
func (s *server) PatchPolicy(
	ctx context.Context, r gen.PatchPolicyRequestObject,
) (gen.PatchPolicyResponseObject, error) {
	answer, err := s.editPolicy(ctx, "policy.patch", r.Name,
		terms{r.Params.IfMatch, r.Params.DryRun, r.Params.Nodes, r.Params.AbortIf},
		func() (edit, error) {
			if err := isPatch(callerOf(ctx).contentType); err != nil {
				return nil, err
			}
			patch, err := readBody(r.Body)
			return func(doc []byte, format policydoc.Format) ([]byte, error) {
				return policydoc.PatchPolicy(doc, format, r.Name, patch)
			}, err
		})
	return gen.PatchPolicy200JSONResponse{ChangeJSONResponse: answer}, err
}

// DeletePolicy removes a policy.
func (s *server) DeletePolicy(
	ctx context.Context, r gen.DeletePolicyRequestObject,
) (gen.DeletePolicyResponseObject, error) {
	answer, err := s.editPolicy(ctx, "policy.delete", r.Name,
		terms{r.Params.IfMatch, r.Params.DryRun, r.Params.Nodes, r.Params.AbortIf}, func() (edit, error) {
			return func(doc []byte, format policydoc.Format) ([]byte, error) {
				return policydoc.DeletePolicy(doc, format, r.Name)
			}, nil
		})
	return gen.DeletePolicy200JSONResponse{ChangeJSONResponse: answer}, err
}

// edit makes the next document of the policy set from the present document.
type edit = func(doc []byte, format policydoc.Format) ([]byte, error)

// editPolicy changes one policy of the set. The set as a whole gets a new version, and is checked
// as a whole: problems have the paths of the set.
func (s *server) editPolicy(
	ctx context.Context, action, name string, on terms, read func() (edit, error),
) (answer gen.ChangeJSONResponse, err error) {
	change, err := changeOf(ctx, action, policyResource(name), on)
	if err != nil {
		return answer, err
	}
	change.Edit, err = read()
	if err != nil {
		return answer, err
	}
	out, err := s.config.Policies.Put(ctx, change)
	return s.answerChange(ctx, change, out, err)
}

// isPatch refuses bodies that say to be something else than a JSON merge patch.
func isPatch(contentType string) error {
	media, _, err := mime.ParseMediaType(contentType)
	switch media {
	case "", mergePatch, string(policydoc.JSON),
		"application/octet-stream", "application/x-www-form-urlencoded", "text/plain":
		if err == nil || contentType == "" {
			return nil
		}
	}
	return &failure{code: errs.UnsupportedMediaType, acceptPatch: mergePatch,
		detail: "a patch is a JSON merge patch (RFC 7396): " + mergePatch}
}
