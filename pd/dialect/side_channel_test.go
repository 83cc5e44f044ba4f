package dialect

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// recordedSideChannel is what a decode engine asked vLLM 0.32.0, and the answer.
func recordedSideChannel(t testing.TB) (question []byte, answer [][]byte) {
	t.Helper()
	data, err := os.ReadFile("testdata/side-channel.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Request string
		Reply   []string
	}
	if err := json.Unmarshal(data, &recorded); err != nil {
		t.Fatal(err)
	}
	for _, text := range append(recorded.Reply, recorded.Request) {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		answer = append(answer, b)
	}
	return answer[len(answer)-1], answer[:len(answer)-1]
}

func TestSideChannel(t *testing.T) {
	question, answer := recordedSideChannel(t)
	if got := AskSideChannel(0, 0); !bytes.Equal(got, question) {
		t.Errorf("asks %x, an engine asks %x", got, question)
	}
	if got, want := AskSideChannel(1, 200), append(question[:len(question)-2:len(question)-2], 1, 0xcc, 200); !bytes.Equal(got, want) {
		t.Errorf("asks %x for other ranks, want %x", got, want)
	}
	got, err := ParseSideChannel(answer)
	if err != nil {
		t.Fatal(err)
	}
	if got.EngineID != "b9202776-25d1-4f70-a973-7b76e04b41b4" {
		t.Errorf("the engine is %q", got.EngineID)
	}
	if !bytes.HasPrefix(got.Agent, []byte("nixlSerDes|Agent$")) || len(got.Agent) != 319 {
		t.Errorf("the agent is %d bytes: %q", len(got.Agent), got.Agent)
	}
}

func TestSideChannelIsOdd(t *testing.T) {
	const agent, engine = "\xaeagent_metadata\xc4\x01x", "\xa9engine_id\xa1e"
	for name, c := range map[string]struct{ answer, says string }{
		"nothing":         {"", "not the msgpack"},
		"a list":          {"\x90", "not the msgpack"},
		"cut off":         {"\x82\xa1a", "not the msgpack"},
		"a length beyond": {"\x81\xdb\xff\xff\xff\xff", "not the msgpack"},
		"what is nothing": {"\x81\xa1a\xc1", "not the msgpack"},
		"deep":            {"\x81\xa1a" + strings.Repeat("\x91", MaxSideChannel), "not the msgpack"},
		"wide":            {"\x81\xa1a\xdd\xff\xff\xff\xff", "not the msgpack"},
		"something else":  {"\x81\xa1a\xa1b", "no agent_metadata_bytes"},
		"no metadata":     {outerOf("\x81" + engine), "no agent_metadata"},
		"no engine":       {outerOf("\x81" + agent), "no engine_id"},
		"an empty engine": {outerOf("\x82\xa9engine_id\xa0" + agent), "no engine_id"},
		"engine a number": {outerOf("\x82\xa9engine_id\x07" + agent), "no engine_id"},
		"inner cut off":   {outerOf("\x82" + engine), "not the msgpack"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseSideChannel([][]byte{[]byte(c.answer)}); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
	if _, err := ParseSideChannel(nil); err == nil {
		t.Error("an answer without parts is taken")
	}
	got, err := ParseSideChannel([][]byte{[]byte(outerOf("\x83" + engine + "\x81\x01\x02\xc0" + agent))})
	if err != nil || got.EngineID != "e" || string(got.Agent) != "x" {
		t.Errorf("with a key that is no string: %+v, %v", got, err)
	}
}

// What is packed is read again, and read by what reads the real one.
func TestSideChannelIsPacked(t *testing.T) {
	for _, want := range []SideChannel{{"e", []byte("x")}, {strings.Repeat("e", 300), bytes.Repeat([]byte{0xc1}, 70000)}} {
		packed := want.Pack("hash", 1.5)
		got, err := ParseSideChannel(packed)
		if err != nil || got.EngineID != want.EngineID || !bytes.Equal(got.Agent, want.Agent) {
			t.Errorf("%d bytes came back as %q, %d bytes, %v", len(want.Agent), got.EngineID, len(got.Agent), err)
		}
		if len(packed) != 2 || string(packed[1]) != "\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00" {
			t.Errorf("the clock is packed as %x", packed[1:])
		}
	}
}

func TestQuestionIsRead(t *testing.T) {
	for _, want := range [][2]int{{0, 0}, {1, 2}, {127, 128}, {255, 200}} {
		pipeline, tensor, ok := ReadQuestion(AskSideChannel(want[0], want[1]))
		if !ok || pipeline != want[0] || tensor != want[1] {
			t.Errorf("%v is read as %d, %d, %v", want, pipeline, tensor, ok)
		}
	}
	whole := AskSideChannel(0, 200)
	for i := range whole {
		if _, _, ok := ReadQuestion(whole[:i]); ok {
			t.Errorf("a question that is cut off after %d bytes is taken", i)
		}
	}
	for name, odd := range map[string][]byte{"more": append(whole, 0), "another word": bytes.Replace(whole, []byte("get"), []byte("set"), 1),
		"a rank below zero": append(AskSideChannel(0, 0)[:questionWord], 0xff, 0)} {
		if _, _, ok := ReadQuestion(odd); ok {
			t.Errorf("%s is taken", name)
		}
	}
}

// outerOf packs the inner map into the outer one.
func outerOf(inner string) string {
	return "\x82\xa4hash\xcb12345678\xb4agent_metadata_bytes\xc5" + string([]byte{byte(len(inner) >> 8), byte(len(inner))}) + inner
}

// FuzzSideChannel: whatever comes, what is read out of it lies in it.
func FuzzSideChannel(f *testing.F) {
	_, answer := recordedSideChannel(f)
	f.Add(answer[0])
	f.Add([]byte(outerOf("\x82\xa9engine_id\xa1e\xaeagent_metadata\xc4\x01x")))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSideChannel([][]byte{b})
		if err != nil {
			return
		}
		if !bytes.Contains(b, s.Agent) || !bytes.Contains(b, []byte(s.EngineID)) || s.EngineID == "" || len(s.Agent) == 0 {
			t.Fatalf("%+v was read out of %q", s, b)
		}
	})
}
