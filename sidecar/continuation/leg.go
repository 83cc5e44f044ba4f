package continuation

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// Refusal returns why the stream cannot go on at another engine from here; "" = it can.
func (s *Stream) Refusal() Refusal {
	switch {
	case s.why != "":
		return s.why
	case s.prompt == nil:
		return Unreadable
	case s.of.api == pd.APIChat && !s.plain:
		return Parsed
	case s.of.limit >= 0 && s.of.limit <= s.count && !s.finished:
		return Unreadable
	}
	return ""
}

// End returns the end of a stream that has broken off after all else had been sent; nil if it lacks more.
func (s *Stream) End() []byte {
	if s.why == "" && s.finished && (s.counted || !s.of.usage) {
		return []byte("data: [DONE]\n\n")
	}
	return nil
}

// Ended reports whether the finish reason was sent: what lacks comes at once.
func (s *Stream) Ended() bool { return s.finished }

// NeedsModelLength reports whether Leg needs the model's length. A completion without a limit would end after 16 tokens.
func (s *Stream) NeedsModelLength() bool { return s.of.limit < 0 && !s.finished }

// Leg makes the request with which another engine goes on, whose model has this length in tokens. If it does, Moved must be called
// before the next Event.
func (s *Stream) Leg(modelLength int64) request.Payload {
	sent, limit, least := s.sent, s.of.limit-s.count, max(0, s.of.least-s.count)
	if s.of.limit < 0 {
		limit = modelLength // which the engine shortens by the prompt
	}
	if s.finished { // only the usage lacks: the last token is generated again for it
		sent, limit, least = s.sent[:s.last], 1, 0
	}
	if len(s.prompt) == 0 {
		sent = bytes.TrimPrefix(sent, comma)
	}
	tail := strconv.AppendInt([]byte(`],"max_tokens":`), limit, 10)
	if least > 0 {
		tail = strconv.AppendInt(append(tail, `,"min_tokens":`...), least, 10)
	}
	if s.of.options != nil {
		tail = append(append(tail, `,"stream_options":`...), s.of.options...)
	}
	tail = append(append(append(tail, `,"stream":true,"return_token_ids":true`...), s.of.rest...), '}')
	var p request.Payload
	for _, segment := range [][]byte{[]byte(`{"prompt":[`), s.prompt, sent, tail} {
		if len(segment) > 0 {
			p.Segments = append(p.Segments, segment)
			p.Length += int64(len(segment))
		}
	}
	return p
}

// Moved says that another engine goes on: the next events are its answer to the last leg. Events that were held back are dropped, because
// it generates their tokens again.
func (s *Stream) Moved() {
	s.moves++
	s.follow, s.swallows = true, s.finished
	s.offset = textOffset(s.scored)
	s.held, s.heldIDs, s.heldN = s.held[:0], s.heldIDs[:0], 0
}

// Moves returns how often another engine has gone on.
func (s *Stream) Moves() int { return s.moves }

// Several reports whether the last event had several ids, of which the last ones may end within a character. Question and Ends then
// say how many of them have to be dropped before Leg.
func (s *Stream) Several() bool { return s.several && !s.finished }

// window is how many ids say whether they end within a character: a character has at most four bytes, and a token one at least.
const window = 16

// Question makes the body of a call of /detokenize, about the last ids that were sent.
func (s *Stream) Question() []byte {
	ids := s.sent
	for at, n := len(ids), 0; n < window; n++ {
		if at = bytes.LastIndexByte(ids[:at], ','); at < 0 {
			break
		} else if n == window-1 {
			ids = ids[at:]
		}
	}
	return append(append([]byte(`{"tokens":[`), bytes.TrimPrefix(ids, comma)...), "]}"...)
}

var detokenizedTable = body.NewTable(body.Want{Path: "prompt"})

// Ends reads the answer to Question: whether the ids end with a whole character.
func Ends(answer []byte) bool {
	var scan body.Scanner
	if scan.Scan(detokenizedTable, body.Limits{}, answer) != nil {
		return false
	}
	m, ok := scan.Find(0)
	if !ok {
		return false
	}
	text, err := body.Text(answer[m.Value.Start:m.Value.End])
	return err == nil && !strings.HasSuffix(text, string(utf8.RuneError))
}

// Drop drops the last id that was sent, whose text was not. It returns false if it cannot: a client that has ids, or log probabilities,
// would get them twice.
func (s *Stream) Drop() bool {
	if s.count == 0 || s.of.wants || s.of.scores {
		return false
	}
	s.sent = s.sent[:s.last]
	s.count--
	s.last = max(0, bytes.LastIndexByte(s.sent, ','))
	return true
}

var lengthTable = body.NewTable(body.Want{Path: "data.*.max_model_len"})

// ModelLength reads the model's length in tokens from an engine's answer to /v1/models. ok is false if it does not say it.
func ModelLength(models []byte) (tokens int64, ok bool) {
	var scan body.Scanner
	if scan.Scan(lengthTable, body.Limits{}, models) != nil {
		return 0, false
	}
	for _, m := range scan.Members() {
		if n, err := strconv.ParseInt(string(models[m.Value.Start:m.Value.End]), 10, 64); err == nil && n > 0 {
			return n, true
		}
	}
	return 0, false
}
