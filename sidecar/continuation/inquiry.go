package continuation

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd/body"
)

// inquiry is what is asked of the engine that is to go on, before the leg. Its zero value has asked nothing.
type inquiry struct {
	done    bool
	widened int // how often the text of the ids was too short
	dropped int
	least   int // of a stop string: characters that the text of its ids has, at least

	suspects []byte // ids that may be special tokens, each after a comma: those that are not yet asked for
	judges   bool   // the question is about the first of them alone
	special  []byte // ids that are special tokens, each after a comma
}

const (
	// window is how many ids say whether they end within a character: a character has at most four bytes, and a token one at least.
	window = 16
	// promptWindow is how many ids of the prompt are before them: a detokenizer removes a blank at the beginning.
	promptWindow = 8
	// widening is the factor by which the window grows if its text is too short.
	widening = 4
	// maxUnfinished is the most ids at the end that are dropped because their text is none yet. Within a character these are three, but
	// models also write bytes that are no character.
	maxUnfinished = 12
)

// Several reports whether the last event had several ids, of which the last ones may end within a character.
func (s *Stream) Several() bool { return s.several && !s.finished && !s.parses() }

// Question makes the body of a call of /detokenize whose answer, given to Answer, the leg needs; nil if it needs none, or no more.
func (s *Stream) Question() []byte {
	if s.asked.done || s.finished || s.parses() {
		return nil
	}
	ids := s.sent
	if s.asked.judges {
		return question(firstIDs(s.asked.suspects, 1))
	}
	switch {
	case s.stopped != nil:
		if s.stopped.all <= 1 {
			return nil
		}
		ids = append(bytes.Clone(lastIDs(s.sent, window)), s.heldIDs...)
		return question(lastIDs(ids, window), firstIDs(s.stopped.ids, s.stopped.n))
	case s.several:
	case s.of.stops == nil || s.of.stops.include || s.count == 0:
		return nil
	}
	var before []byte
	if s.asksAll() {
		before = lastIDs(append(bytes.Clone(comma), s.prompt...), promptWindow)
		if len(s.prompt) == 0 {
			before = nil
		}
	}
	return question(before, withoutSpecial(lastIDs(ids, s.window()), s.asked.special))
}

// withoutSpecial returns ids without some of them. Both have each id after a comma.
func withoutSpecial(ids, special []byte) []byte {
	if len(special) == 0 {
		return ids
	}
	var kept []byte
	for len(ids) > 0 {
		id := firstIDs(ids, 1)
		if ids = ids[len(id):]; !hasID(special, id) {
			kept = append(kept, id...)
		}
	}
	return kept
}

// hasID reports whether a list has an id. All ids are after a comma.
func hasID(list, id []byte) bool {
	for len(list) > 0 {
		one := firstIDs(list, 1)
		if list = list[len(one):]; bytes.Equal(bytes.TrimSpace(one[1:]), bytes.TrimSpace(id[1:])) {
			return true
		}
	}
	return false
}

// window returns how many ids the question is about.
func (s *Stream) window() int {
	n := window
	if s.of.stops != nil {
		n += utf8.UTFMax * (s.of.stops.hold() + sameText)
	}
	for range s.asked.widened {
		n *= widening
	}
	return n
}

func (s *Stream) asksAll() bool { return int64(s.window()) >= s.count }

// question makes the body of a call of /detokenize of lists of ids, each after a comma.
func question(lists ...[]byte) []byte {
	return append(append([]byte(`{"tokens":[`), bytes.TrimPrefix(bytes.Join(lists, nil), comma)...), "]}"...)
}

// lastIDs returns the last n of some ids, each after a comma.
func lastIDs(ids []byte, n int) []byte {
	at := len(ids)
	for ; n > 0 && at > 0; n-- {
		at = max(0, bytes.LastIndexByte(ids[:at], ','))
	}
	return ids[at:]
}

// firstIDs returns the first n of some ids, each after a comma.
func firstIDs(ids []byte, n int64) []byte {
	at := 0
	for ; n > 0 && at < len(ids); n-- {
		next := bytes.IndexByte(ids[at+1:], ',')
		if next < 0 {
			return ids
		}
		at += 1 + next
	}
	return ids[:at]
}

var detokenizedTable = body.NewTable(body.Want{Path: "prompt"})

var (
	errAnswer   = errors.New("the answer has no text")
	errEndsPart = errors.New("the tokens that were sent end within a character")
)

// Answer takes the answer to Question. The error says why the stream cannot go on.
func (s *Stream) Answer(answer []byte) error {
	var scan body.Scanner
	if scan.Scan(detokenizedTable, body.Limits{}, answer) != nil {
		return errAnswer
	}
	m, ok := scan.Find(0)
	if !ok {
		return errAnswer
	}
	text, err := body.Text(answer[m.Value.Start:m.Value.End])
	if err != nil {
		return errAnswer
	}
	if s.stopped != nil {
		s.countStopped(text)
		return nil
	}
	if s.asked.judges {
		s.judge(text)
		return nil
	}
	if strings.HasSuffix(text, string(utf8.RuneError)) {
		if s.asked.dropped == maxUnfinished || !s.drop() {
			return errEndsPart
		}
		s.asked.dropped++
		return nil
	}
	if s.of.stops != nil && !s.of.stops.include && s.count > 0 {
		if ok, err = s.search.resume(s.of.stops, &s.recent, text, s.asksAll()); err != nil {
			if s.suspect() {
				return nil
			}
			return err
		}
		if !ok {
			s.asked.widened++
			return nil
		}
	}
	s.asked.done = true
	return nil
}

// suspect begins to ask which of the ids without text are special tokens: an engine leaves these out of an answer, and /detokenize does
// not. It returns false if there are none, or they were asked for.
func (s *Stream) suspect() bool {
	if s.asked.suspects != nil {
		return false
	}
	s.asked.suspects = append([]byte{}, s.mute...)
	s.asked.judges = len(s.mute) > 0
	return s.asked.judges
}

// judge takes the text of an id that had none in the answer. It is a special token if its text is whole; otherwise it ended within a
// character.
func (s *Stream) judge(text string) {
	id := firstIDs(s.asked.suspects, 1)
	if text != "" && !strings.ContainsRune(text, utf8.RuneError) {
		s.asked.special = append(s.asked.special, id...)
	}
	s.asked.suspects = s.asked.suspects[len(id):]
	s.asked.judges = len(s.asked.suspects) > 0
}

// maxMute is the most ids without text that are kept.
const maxMute = 16

// noteMute keeps the ids of events without text, after an event with text: before it, text may be held back.
func (s *Stream) noteMute() {
	if s.of.stops == nil || s.of.stops.include || s.count == 0 {
		return
	}
	for ids := s.heldIDs; len(ids) > 0; {
		id := firstIDs(ids, 1)
		if ids = ids[len(id):]; !hasID(s.mute, id) {
			s.mute = lastIDs(append(s.mute, id...), maxMute)
		}
	}
}

// drop drops the last id that was sent, whose text was not. It returns false if it cannot: a client that has ids, or log probabilities,
// would get them twice.
func (s *Stream) drop() bool {
	if s.count == 0 || s.of.wants || s.of.scores {
		return false
	}
	s.sent = s.sent[:s.last]
	s.count--
	s.last = max(0, bytes.LastIndexByte(s.sent, ','))
	return true
}

// stopped is the event in which a stop string was found. It is sent when another leg, of one token, has said what the first engine would
// have said at the end.
type stopped struct {
	data []byte // the event of the engine that goes on
	text string // what the client gets of its text
	stop string
	rest int    // characters of its text after the stop string
	ids  []byte // of its tokens, each after a comma
	all  int64  // how many those are
	n    int64  // how many of them the answer has
}

// lookForStops looks for stop strings in the text of the event that was scanned last.
func (s *Stream) lookForStops(data []byte) (c change) {
	text, err := body.Text(s.member(data, eText))
	if err != nil {
		s.broken = err
		return c
	}
	var ids []byte
	if list := s.member(data, eIDs); len(list) > len("[]") {
		ids = append(bytes.Clone(comma), list[1:len(list)-1]...)
	}
	n := int64(bytes.Count(ids, comma))
	finish := s.member(data, eFinish)
	last := finish != nil && !bytes.Equal(finish, null)
	out, stop, rest := s.search.push(s.of.stops, text, s.count+s.heldN+n > s.of.least, last)
	if stop == "" {
		c.text = appendText(nil, out)
		return c
	}
	s.asked = inquiry{}
	s.stopped = &stopped{data: bytes.Clone(data), text: out, stop: stop, rest: utf8.RuneCountInString(text[len(text)-rest:]), ids: ids, all: n, n: n}
	return c
}

// ending returns how the event ends the answer.
func (s *stopped) ending(fingerprint []byte) change {
	return change{text: appendText(nil, s.text), finish: []byte(`"stop"`), reason: appendText(nil, s.stop), without: s.all - s.n,
		fingerprint: bytes.Clone(fingerprint)}
}

// before returns the ids before the last one.
func (s *stopped) before() []byte { return firstIDs(s.ids, s.n-1) }

// countStopped takes the text of the ids: those belong to the answer whose text the stop string needs.
func (s *Stream) countStopped(text string) {
	chars := utf8.RuneCountInString(strings.TrimRight(text, string(utf8.RuneError)))
	st := s.stopped
	switch {
	case s.asked.least == 0:
		s.asked.least = max(1, chars-st.rest)
	case chars < s.asked.least: // the last id that was left out is needed
		st.n++
		s.asked.done = true
		return
	}
	if st.n--; st.n == 0 {
		st.n, s.asked.done = 1, true
	}
}

// Stopped reports whether a stop string has ended the answer. Its leg has to be ended, and another one, of one token, begun: then Closes
// must be called before the next Event.
func (s *Stream) Stopped() bool { return s.stopped != nil }

// Closes says that the next events are those of the leg that says how the answer ends.
func (s *Stream) Closes() { s.swallows = true }

// Broken returns why no more of the answer can be sent; nil if there is no reason.
func (s *Stream) Broken() error { return s.broken }
