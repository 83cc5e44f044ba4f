package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd"
)

// phaseMeaning explains each phase.
var phaseMeaning = map[pd.Phase]string{
	pd.PhaseEPP:     "the picker reads the request and chooses the endpoints",
	pd.PhaseRecv:    "the sidecar reads the request",
	pd.PhaseEncode:  "encoders encode images, audio and video, if they are named",
	pd.PhasePrefill: "a prefill engine computes the KV cache of the prompt",
	pd.PhaseHandoff: "the sidecar turns the answer of prefill into the request to decode",
	pd.PhaseFirst: "the decode engine pulls the KV cache, or computes it if local, up to its first byte, or up to the end of an " +
		"answer that is not streamed; the first transfer between two engines also connects them",
	pd.PhaseDecode: "the decode engine makes the rest of a streamed answer",
	pd.PhaseOverlap: "how long prefill and first ran at the same time, where both engines get a request at once: it is in both, and " +
		"counts once in sums",
}

// reasonMeaning explains each reason.
var reasonMeaning = map[pd.Reason]string{
	pd.Uncached:       "enough of the prompt was not cached on the decode endpoint",
	pd.Always:         "the decider sends every prompt to a prefill endpoint",
	pd.Forced:         "the client asked for remote prefill",
	pd.External:       "another picker chose the prefill endpoint",
	pd.DecodeOnly:     "the decode engine cannot compute prompts",
	pd.BelowThreshold: "too few uncached tokens to make a transfer worthwhile",
	pd.ShortPrompt:    "the prompt is too short, even if nothing of it is cached",
	pd.Bypassed:       "the client asked for local prefill",
	pd.NotSplittable:  "the request does not fit into one hand-off",
	pd.Unplanned:      "no picker sent a plan, and no prefill endpoint was named",
	pd.NoMedia:        "the prompt has no image, audio or video",
	pd.NoPrefill:      "no prefill endpoint was available",
	pd.PrefillFailed:  "every prefill candidate failed",
	pd.HandoffInvalid: "the answer of prefill has no valid hand-off",
	pd.HandoffLate:    "the hand-off was too old to be used",
	pd.TransferFailed: "the decode engine could not load the KV cache",
	pd.WrongProtocol:  "an engine speaks another hand-off protocol than the sidecar",
	pd.BadPDHeader:    "the client's x-tandem-pd header is malformed",
	pd.BadRequest:     "the request is malformed, or names no model",
	pd.DuplicateKey:   "an important key occurs twice in the body",
	pd.TooLarge:       "the body is larger than the limit",
	pd.LongHeader:     "there are too many headers",
	pd.SlowBody:       "the body arrived too slowly",
	pd.UntrustedPeer:  "the sender may not choose a prefill endpoint",
	pd.DeniedTarget:   "the prefill endpoint is not on the allow-list",
	pd.NotCached:      "nothing of the prompt is cached, and the client wants no answer then",
	pd.NoEndpoint:     "no endpoint may serve the request",
	pd.Saturated:      "every endpoint is full",
	pd.QueueFull:      "as many requests wait for capacity as may",
	pd.QueueTimeout:   "no capacity came in time",
	pd.Evicted:        "a more important request took its place in the queue, or its capacity",
	pd.Budget:         "too many requests fell back to local prefill already",
	pd.Busy:           "too many bytes of bodies were buffered already",
	pd.Draining:       "the server is shutting down",
	pd.Deadline:       "a deadline passed",
	pd.InternalError:  "an error inside Tandem",
}

// absent is shown for values that were not measured.
const absent = "–"

// millis prints milliseconds without their unit, in at most eight characters.
func millis(v float64) string {
	switch {
	case !plausible(v):
		return absent
	case v != 0 && v < 0.995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 99999:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// percent prints a percentage.
func percent(v float64) string {
	if !plausible(v) {
		return absent
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + "%"
}

// seconds prints milliseconds as seconds.
func seconds(ms float64) string { return strconv.FormatFloat(ms/1000, 'f', 1, 64) + " s" }

// tick names a position on a time axis in the unit that is shortest.
func tick(ms float64) string {
	short := func(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
	switch {
	case ms == 0:
		return "0"
	case ms < 0.9999:
		return short(ms*1000) + " µs"
	case ms < 999.9:
		return short(ms) + " ms"
	}
	return short(ms/1000) + " s"
}

// bytesText prints bytes in the largest unit of which there is at least one.
func bytesText(n int64) string {
	const kib = 1 << 10
	switch v := float64(n); {
	case n < kib:
		return strconv.FormatInt(n, 10) + " B"
	case n < kib*kib:
		return strconv.FormatFloat(v/kib, 'f', 1, 64) + " KiB"
	case n < kib*kib*kib:
		return strconv.FormatFloat(v/kib/kib, 'f', 1, 64) + " MiB"
	default:
		return strconv.FormatFloat(v/kib/kib/kib, 'f', 1, 64) + " GiB"
	}
}

// kibibytes formats a column of KiB; negative values are unknown.
func kibibytes(n int64) string {
	if n < 0 {
		return absent
	}
	return strconv.FormatInt((n+512)/1024, 10)
}

// fraction prints a score or a share with at most three digits after the point.
func fraction(v float64) string { return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64) }

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// printable returns s as valid UTF-8 without control characters, which could move the cursor or colour a FAILED green, and
// without those that change the direction of writing. Line breaks and tabs stay.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r == utf8.RuneError || unicode.IsPrint(r) || unicode.Is(unicode.Zs, r) {
			return r
		}
		return utf8.RuneError
	}, s)
}

// line returns the printable text on one line.
func line(s string) string { return strings.Join(strings.Fields(printable(s)), " ") }

// cut shortens a line to at most n characters.
func cut(s string, n int) string {
	s = line(s)
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// what describes the kind of a request, in its row and above its waterfall.
func (r *Request) what() string {
	if r.Stream {
		return r.API + ", streamed"
	}
	return r.API
}

// story describes a request in one sentence.
func (r *Request) story() string {
	s := fmt.Sprintf("Request %d (%s) of class “%s”: %s because %s", r.Number, r.what(), r.Class, r.Decision, r.Reason)
	s += fmt.Sprintf(", %d prompt tokens of which %d were cached, %d completion tokens", r.Prompt, r.Cached, r.Completion)
	if r.PrefillPod != "" {
		s += ", prefilled on " + r.PrefillPod
	}
	if r.DecodePod != "" {
		s += ", decoded on " + r.DecodePod
	}
	if r.KVBytes > 0 {
		s += ", " + bytesText(r.KVBytes) + " of KV cache moved"
	}
	return s + "."
}
