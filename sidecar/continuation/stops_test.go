package continuation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// wholeSearch finds stop strings in an answer that one engine has made, in the simplest way. It returns what each piece gives the client,
// and the stop string.
func wholeSearch(of *stops, pieces []string, least int) (out []string, stop string) {
	text, sent := "", 0
	for i, piece := range pieces {
		before := len(text)
		text += piece
		limit := back(text, of.hold())
		if i == len(pieces)-1 {
			limit = len(text)
		}
		if end := len(text) + 1; i >= least {
			for _, one := range of.texts {
				for at := range text {
					if n := at + len(one); n > before && n < end && strings.HasPrefix(text[at:], one) {
						stop, end, limit = one, n, at
						if of.include {
							limit = n
						}
					}
				}
			}
		}
		if limit < sent {
			limit = sent
		}
		out = append(out, text[sent:limit])
		sent = limit
		if stop != "" {
			break
		}
	}
	return out, stop
}

// However a text is divided, and wherever another engine goes on, the client gets what one engine would have sent.
func TestStopsAreFoundAcrossSeams(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	alphabet := []string{"a", "b", "é", "😀", "\n", "\"", "\\", ""}
	for range 20000 {
		of := &stops{include: random.IntN(2) == 0}
		for range 1 + random.IntN(3) {
			text := ""
			for range 1 + random.IntN(4) {
				text += alphabet[random.IntN(len(alphabet)-1)]
			}
			of.texts, of.longest = append(of.texts, text), max(of.longest, utf8.RuneCountInString(text))
		}
		pieces := make([]string, 1+random.IntN(20))
		for i := range pieces {
			for range random.IntN(3) {
				pieces[i] += alphabet[random.IntN(len(alphabet))]
			}
		}
		least := random.IntN(3)
		want, stop := wholeSearch(of, pieces, least)
		seam := random.IntN(len(want))
		got, found, err := searchFrom(of, pieces, want, seam, least)
		if err != nil || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) || found != stop {
			t.Fatalf("%q include %v in %q from %d: %q %q %v, want %q %q", of.texts, of.include, pieces, seam, got, found, err, want, stop)
		}
	}
}

// searchFrom searches from a seam, before which the client has got what it should.
func searchFrom(of *stops, pieces, want []string, seam, least int) (got []string, stop string, err error) {
	var recent recentText
	for _, piece := range want[:seam] {
		quoted := appendText(nil, piece)
		recent.add(of, quoted[1:len(quoted)-1])
	}
	var search stopSearch
	known := strings.Join(pieces[:seam], "")
	switch sent := strings.Join(want[:seam], ""); {
	case of.include:
		search = recent.searched(of)
	case sent != "":
		if ok, err := search.resume(of, &recent, known, true); !ok || err != nil {
			return nil, "", fmt.Errorf("resuming after %q of %q: %v, %w", sent, known, ok, err)
		}
	default: // nothing was sent: all is generated again
		seam = 0
	}
	got = append(got, want[:seam]...)
	for i := seam; i < len(pieces) && stop == ""; i++ {
		var out string
		out, stop, _ = search.push(of, pieces[i], i >= least, i == len(pieces)-1)
		got = append(got, out)
	}
	return got, stop, nil
}

func TestOtherTextIsNoticed(t *testing.T) {
	of := &stops{texts: []string{"abc"}, longest: 3}
	var recent recentText
	recent.add(of, []byte(`so much \ud83d\ude00`))
	var search stopSearch
	for text, want := range map[string]struct {
		all, ok bool
		err     error
	}{"so much 😀xy": {true, true, nil}, "h 😀xy": {false, false, nil}, "so much éxy": {true, false, errOtherText}, "": {true, false, errOtherText}} {
		if ok, err := search.resume(of, &recent, text, want.all); ok != want.ok || err != want.err {
			t.Errorf("%q: %v %v", text, ok, err)
		}
	}
	if search.text != "xy" {
		t.Errorf("%q is held back", search.text)
	}
}

func TestTextIsQuotedAsByTheEngine(t *testing.T) {
	for text, want := range map[string]string{"a\"\\\b\f\n\r\t/": `"a\"\\\b\f\n\r\t/"`, "é😀\u2028<\x7f": "\"é😀\u2028<\x7f\"", "\x00\x1f": `"\u0000\u001f"`} {
		if got := string(appendText(nil, text)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if back, err := body.Text(appendText(nil, text)); err != nil || back != text {
			t.Errorf("%q is read as %q, %v", text, back, err)
		}
	}
}

const stopAsk = `{"model":"m","prompt":"x","max_tokens":50,"stream":true,"stop":["xyz"],"stream_options":{"include_usage":true}}`

// A stop string begins in one engine's text and ends in an event with several ids of the other's.
func TestStopEndsWithinSeveralIDs(t *testing.T) {
	s := start(t, pd.APICompletions, stopAsk, 1<<20)
	feed(t, s, event("", "null", "[1,2]", "[3]"), event("so muc", "null", "null", "[4,5]"))
	if got := string(s.Question()); got != `{"tokens":[1,2,3,4,5]}` {
		t.Fatal(got)
	}
	if err := s.Answer([]byte(`{"prompt":"so much x"}`)); err == nil {
		t.Error("text that was not held back is held back")
	}
	if err := s.Answer([]byte(`{"prompt":"so muc x"}`)); err != nil || s.Question() != nil {
		t.Fatalf("asked again, %v", err)
	}
	leg := `{"prompt":[1,2,3,4,5],"max_tokens":47,"stream_options":{"include_usage":true},"stream":true,"return_token_ids":true,"model":"m"}`
	if got := string(join(s)); got != leg {
		t.Errorf("%s\nwant\n%s", got, leg)
	}
	s.Moved()
	if got := feed(t, s, event("y", "null", "null", "[6]"), event("zabc", "null", "null", "[7,8,9]"), event("d", "null", "null", "[10]"), "data: [DONE]\n\n"); got != event(" ", "null", "null", "null") {
		t.Error(got)
	}
	if !s.Stopped() {
		t.Fatal("the stop string is not found")
	}
	for _, c := range []struct{ ids, text string }{{"3,4,5,6,7,8,9", "so muc xyzabc"}, {"3,4,5,6,7,8", "so muc xyza"}, {"3,4,5,6,7", "so muc xy\ufffd"}} {
		if got, want := string(s.Question()), `{"tokens":[`+c.ids+`]}`; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		if err := s.Answer([]byte(`{"prompt":"` + c.text + `"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if s.Question() != nil {
		t.Errorf("asked again: %s", s.Question())
	}
	leg = `{"prompt":[1,2,3,4,5,6,7],"max_tokens":1,"stream_options":{"include_usage":true},"stream":true,"return_token_ids":true,"model":"m"}`
	if got := string(join(s)); got != leg {
		t.Errorf("%s\nwant\n%s", got, leg)
	}
	s.Closes()
	const usage = `data: {"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":%d,"total_tokens":8,"completion_tokens":%d}}` + "\n\n"
	got := feed(t, s, event("q", `"length"`, "null", "[8]"), fmt.Sprintf(usage, 7, 1), "data: [DONE]\n\n")
	want := strings.Replace(event("", `"stop"`, "null", "null"), `"stop_reason":null`, `"stop_reason":"xyz"`, 1) + fmt.Sprintf(usage, 2, 6) + "data: [DONE]\n\n"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// An answer has not the text of special tokens (those that end an answer whose end is ignored), and /detokenize has it.
func TestSpecialTokensHaveNoText(t *testing.T) {
	s := start(t, pd.APICompletions, stopAsk, 1<<20)
	feed(t, s, event("", "null", "[1,2]", "[3]"), event("so muc", "null", "null", "[4,5]"), event("", "null", "null", "[6]"), event("h", "null", "null", "[7]"),
		event("", "null", "null", "[8]"), event(" ", "null", "null", "[9]"))
	for _, c := range []struct{ ids, text string }{
		{"1,2,3,4,5,6,7,8,9", "so much<|end|> �x"},
		{"6", "<|end|>"},
		{"8", "�"}, // the beginning of a character
		{"1,2,3,4,5,7,8,9", "so much éx"},
	} {
		if got, want := string(s.Question()), `{"tokens":[`+c.ids+`]}`; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		if err := s.Answer([]byte(`{"prompt":"` + c.text + `"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if s.Question() != nil {
		t.Errorf("asked again: %s", s.Question())
	}
	if got := string(join(s)); !strings.Contains(got, `"prompt":[1,2,3,4,5,6,7,8,9],`) {
		t.Errorf("the leg lacks a token: %s", got)
	}
	other := start(t, pd.APICompletions, stopAsk, 1<<20)
	feed(t, other, event("", "null", "[1,2]", "[3]"), event("so muc", "null", "null", "[4,5]"), event("", "null", "null", "[6]"), event("h", "null", "null", "[7]"))
	other.Question()
	for _, text := range []string{"so many xy", "<|end|>"} {
		if err := other.Answer([]byte(`{"prompt":"` + text + `"}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Answer([]byte(`{"prompt":"so many xy"}`)); err != errOtherText {
		t.Errorf("other text without special tokens: %v", err)
	}
}

// join returns the body of the next leg.
func join(s *Stream) []byte {
	var all []byte
	for _, segment := range s.Leg(0).Segments {
		all = append(all, segment...)
	}
	return all
}
