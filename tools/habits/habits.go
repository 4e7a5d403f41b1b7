// Package habits lists the habits of writing that slow a reader down, and counts them in text. The
// rules of the tree hold each room to a budget of them, and tools/measure prints how frequent they
// are, here or in another project.
package habits

import (
	"regexp"
	"strings"
)

// A Habit is a way of writing that a reader has to resolve before the sentence makes sense.
type Habit struct {
	Name    string // a short name, without spaces
	Pattern *regexp.Regexp
	Except  *regexp.Regexp // a match that also matches this is honest English; nil excepts nothing
	Instead string         // the advice to the writer
}

// Banned are the habits that no text of the tree may have.
var Banned = []Habit{
	{Name: "centre", Pattern: regexp.MustCompile(`(?i)\bcent(re|er)('s)?\b`), Instead: "the control plane"},
	{Name: "nobody", Pattern: regexp.MustCompile(`(?i)\b(nobody|everybody|somebody|anybody)\b`),
		Instead: "the actor: no caller, every Envoy, another worker, an operator"},
	{Name: "whoever", Pattern: regexp.MustCompile(`(?i)\b(whoever|whomever)\b`),
		Instead: "the actor: a caller that, each worker that"},
	{Name: "who-first", Pattern: regexp.MustCompile(`(^|[.:;] )Who [^.?:;]*[.:;|]`),
		Instead: "the actor as the subject: a caller that …"},
	{Name: "told", Pattern: regexp.MustCompile(`(?i)\b(told|telling)\b`),
		Instead: "reports, sends, receives, knows, differs"},
	{Name: "says-whether", Pattern: regexp.MustCompile(`(?i)\bsays whether\b`), Instead: "reports whether"},
	{Name: "lot", Pattern: regexp.MustCompile(`(?i)\b(lots?|desks?)\b`),
		Instead: "tokens or leased tokens; the lease client"},
	{Name: "reckon", Pattern: regexp.MustCompile(`(?i)\breckon(s|ed|ing)?\b`), Instead: "count, compute, assume"},
	{Name: "of-first", Pattern: regexp.MustCompile(`(^|[.:;] )Of (a|an|the|this|that|these|those|what|which|all|` +
		`both|several|few|more|two|three|further)\b`), Instead: `the subject first: not "Of a bucket …"`},
}

// Counted are the habits that each room has a budget of.
var Counted = []Habit{
	{Name: "what", Pattern: regexp.MustCompile(`(?i)\bwhat [a-z]+`),
		Except:  regexp.MustCompile(`(?i)^what (do|does|did)$`),
		Instead: `the thing itself: not "what the bucket holds" but "the bucket's tokens"`},
	{Name: "those", Pattern: regexp.MustCompile(
		`(?i)\b(those (that|of|who|which|for|with|without)|ones? (that|who|which|for|with|without)|the ones? of)\b`),
		Instead: `the noun again: not "those that wait" but "requests that wait"`},
	{Name: "that-of", Pattern: regexp.MustCompile(`(?i)\b(that|those) of\b`),
		Instead: `the noun again: not "that of the last claim" but "the number of the last claim"`},
	{Name: "so-many", Pattern: regexp.MustCompile(`(?i)\b((so|as) many|so long|so much)\b`),
		Instead: `the constant or the number: not "as many as may" but "maxWaiting"`},
	{Name: "bare-one", Pattern: regexp.MustCompile(`(?i)\b(one|ones|others|another)([,;:)]|[.!]?$)`),
		Except:  regexp.MustCompile(`:$`),
		Instead: `the noun at the end of the clause: not "for another." but "for another bucket."`},
	{Name: "goes-by", Pattern: regexp.MustCompile(
		`(?i)\b((go|goes|went|gone|going) by|(stand|stands|stood|standing) for|(come|comes|came|coming) with)\b`),
		Instead: "uses, according to, is, has"},
	{Name: "has-do", Pattern: regexp.MustCompile(`(?i)\b(has|have|had|having) ((the|a|an|its|their|each|every|all|no) ` +
		`([a-z]+ ){1,2}|(it|them) )` +
		`(decide|settle|carry|send|take|forget|begin|refuse|admit|apply|read|write|ask|keep|hold|do|make|give|know|` +
		`learn|say|go|come|become|be|have|spend|bring|get|find|add|choose|follow|return|run|serve|wait)\b`),
		Instead: `the subject that acts: not "has the store decide" but "the store decides"`},
}

var (
	sentenceEnd = regexp.MustCompile(`([.!?]["')]?)\s+|\n\s*\n`)
	names       = regexp.MustCompile("`[^`]*`")
	listItem    = regexp.MustCompile(`(?m)^\s*([-*]|\d+\.)\s`)
)

// Sentences splits text into its sentences of at least three words. An item of a list begins a new
// sentence. Words in backticks are names and become "x". A line that begins with a tab is code and
// does not count.
func Sentences(text string) (sentences []string) {
	var prose []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "\t") {
			prose = append(prose, line)
		}
	}
	text = names.ReplaceAllString(strings.Join(prose, ""), "x")
	text = listItem.ReplaceAllString(text, "\n\n")
	for from := 0; from < len(text); {
		end := len(text)
		if m := sentenceEnd.FindStringIndex(text[from:]); m != nil {
			end = from + m[1]
		}
		sentence := strings.Join(strings.Fields(text[from:end]), " ")
		if strings.Count(sentence, " ") >= 2 {
			sentences = append(sentences, sentence)
		}
		from = end
	}
	return sentences
}

// Find returns the places in a sentence that have the habit. A question may say "what".
func (h Habit) Find(sentence string) (found []string) {
	if strings.HasSuffix(sentence, "?") {
		return nil
	}
	for _, match := range h.Pattern.FindAllString(sentence, -1) {
		if h.Except == nil || !h.Except.MatchString(match) {
			found = append(found, match)
		}
	}
	return found
}
