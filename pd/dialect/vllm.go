package dialect

import (
	"bytes"
	"slices"

	"github.com/tandem-serving/tandem/pd/body"
)

// vllmEngine has what vLLM's engines do whatever their connector is.
type vllmEngine struct{}

// vllmStrips are members of a message's items by which a client names what is encoded, instead of an image, a recording or a video.
// An engine that hands KV caches over takes them from any client. One that does not find what a uuid names, or finds another size than
// was said, ends; and with the uuid of another client's image, that image is answered about.
var vllmStrips = []string{"messages.*.content.*.uuid", "messages.*.content.*.image_embeds", "messages.*.content.*.audio_embeds", "messages.*.content.*.video_embeds"}

// Strips implements Stripper.
func (vllmEngine) Strips() []string { return vllmStrips }

// ReadsEncodings implements EncodingReader.
func (vllmEngine) ReadsEncodings() {}

// abortedMark is in an answer that vLLM has not finished. Quotes in a text are escaped, so no text contains the mark. When
// vLLM 0.32.0 is stopped, it answers some of its running requests with 200, this mark and the tokens so far.
var abortedMark = []byte(`"finish_reason":"abort"`)

// Unfinished implements Unfinisher.
func (vllmEngine) Unfinished(answer []byte) bool { return bytes.Contains(answer, abortedMark) }

// ClientsAbort implements Unfinisher.
func (vllmEngine) ClientsAbort() bool { return true }

// completionTable finds, after the members of answerTable, those of which a completion has one: choices of chat, completions and
// generate, the output of a response, the content of a message.
var completionTable = body.NewTable(append(slices.Clip(answerWants), body.Want{Path: "choices"}, body.Want{Path: "output"}, body.Want{Path: "content"})...)

// completed reports whether an answer, scanned by completionTable, is a completion that the engine has finished.
func completed(answer []byte, s *body.Scanner) bool {
	for want := len(answerWants); want < len(answerWants)+3; want++ {
		if _, ok := s.Find(want); ok {
			return !vllmEngine{}.Unfinished(answer)
		}
	}
	return false
}
