package dialect

import (
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pd"
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

// vllmAborts are the calls that end requests, also those of other clients. Engines serve the first with --enable-scale-out.
var vllmAborts = []string{"/inference/v1/abort_requests", "/abort_requests"}

// Passes implements PathLimiter.
func (vllmEngine) Passes(_, of string) bool { return !slices.Contains(vllmAborts, path.Clean("/"+of)) }

// ReadsEncodings implements EncodingReader.
func (vllmEngine) ReadsEncodings() {}

// legRanks are the data-parallel ranks that the picker has chosen for the legs of an attempt: prefill's, and decode's. An engine with
// ranks behind one port (--data-parallel-size) is told them by a header, and refuses a request for a rank that it does not have.
type legRanks struct{ prefill, decode pd.Rank }

// set names the rank of a leg, if one was chosen.
func (r legRanks) set(role pd.Role, h http.Header) {
	rank := r.decode
	if role == pd.RolePrefill {
		rank = r.prefill
	}
	setRankHeader(rank, h)
}

func setRankHeader(rank pd.Rank, h http.Header) {
	if number, ok := rank.Number(); ok {
		h[rankHeader] = []string{strconv.Itoa(number)}
	}
}

// SetLocalRank implements LocalRanker.
func (vllmEngine) SetLocalRank(rank pd.Rank, h http.Header) { setRankHeader(rank, h) }

// The beginning and the rest of vLLM's message about a rank that it does not have (0.32.0, input_processor.py). Clients name no ranks.
const (
	rankMessage     = "data_parallel_rank "
	rankMessageRest = " is out of range "
)

// RefusesRank implements RankRefuser: an engine that was started anew with fewer ranks answers 400 until the picker has read its page.
func (vllmEngine) RefusesRank(answer []byte) bool {
	var refused struct{ Error struct{ Message string } }
	return json.Unmarshal(answer, &refused) == nil && strings.HasPrefix(refused.Error.Message, rankMessage) &&
		strings.Contains(refused.Error.Message, rankMessageRest)
}

// abortedMark is in an answer that vLLM has not finished. Quotes in a text are escaped, so no text contains the mark. When
// vLLM 0.32.0 is stopped, it answers some of its running requests with 200, this mark and the tokens so far.
var abortedMark = body.NewMark(`"finish_reason":"abort"`, 'b')

// Unfinished implements Unfinisher.
func (vllmEngine) Unfinished(answer []byte) bool { return abortedMark.In(answer) }

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
