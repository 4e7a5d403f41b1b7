package policies

import (
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// responsesFacts returns the facts of all responses of the set.
func responsesFacts(all []policy.Response) (facts []fact) {
	if len(all) == 0 {
		all = make([]policy.Response, policy.AnswerCount)
	}
	for i, r := range all {
		headers := strings.Split(r.Headers, "\n")
		list := make([]string, 0, len(headers)/2)
		for at := 0; at+1 < len(headers); at += 2 {
			list = append(list, headers[at]+": "+headers[at+1])
		}
		name := policy.Answers[i] + "."
		facts = append(append(facts, responseFacts(name, r)...), fact{field: name + "headers", list: list})
	}
	return facts
}

// responseFacts returns the facts of a response, with a prefix before each field.
func responseFacts(prefix string, r policy.Response) []fact {
	return []fact{
		{field: prefix + "status", text: numberText(r.Status)},
		{field: prefix + "body", text: quoteText(r.Body)},
		{field: prefix + "content_type", text: quoteText(r.ContentType)},
	}
}
