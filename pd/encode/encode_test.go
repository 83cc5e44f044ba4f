package encode_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/encode"
	"github.com/tandem-serving/tandem/pd/request"
)

var (
	hashA = strings.Repeat("0a", 32)
	hashB = strings.Repeat("0b", 32)
)

// asked returns a request that arrived in segments of some bytes.
func asked(tb testing.TB, api pd.API, text string, segment int) *request.Request {
	tb.Helper()
	d, _ := dialect.New("nixlv2", dialect.Options{})
	table := dialect.Members(d)
	b, scan := &body.Body{}, new(body.Scanner)
	scan.Reset(table.Members(), body.Limits{}, nil)
	for rest := []byte(text); len(rest) > 0; {
		n := min(segment, len(rest))
		b.Append(rest[:n])
		if _, err := scan.Write(rest[:n]); err != nil {
			tb.Fatal(err)
		}
		rest = rest[n:]
	}
	if err := scan.Close(); err != nil {
		tb.Fatal(err)
	}
	return table.Request(api, b, scan)
}

func text(p request.Payload) string {
	var b strings.Builder
	for _, s := range p.Segments {
		b.Write(s)
	}
	return b.String()
}

const (
	imageA = `{ "type":"image_url", "image_url":{"url":"data:image/png;base64,AAAA"} }`
	imageB = `{"image_url":"http://x/b"}`
	audio  = `{"type":"input_audio","input_audio":{"data":"AAAA"}}`
	video  = `{"type":"video_url","video_url":{"url":"http://x/v"}}`
)

func chat(parts ...string) string {
	return `{"model":"m","messages":[{"role":"user","content":"text"},{"role":"user","content":[` + strings.Join(parts, ",") + `]},{"role":"tool","content":[` + imageA + `]}]}`
}

// Items are found wherever the body was cut, and each leg has its own ones.
func TestLegs(t *testing.T) {
	for _, segment := range []int{1, 7, 1 << 20} {
		m, err := encode.MediaOf(asked(t, pd.APIChat, chat(`{"type":"text","text":"image_url"}`, imageB, audio, `"text"`, video), segment))
		if err != nil || m.Len() != 4 {
			t.Fatalf("%v, %v", m, err)
		}
		for _, tc := range []struct {
			items []int
			want  string
		}{{[]int{0, 1, 2, 3}, imageB + "," + audio + "," + video + "," + imageA}, {[]int{2}, video}} {
			leg := m.Leg(tc.items)
			want := `{"messages":[{"role":"user","content":[` + tc.want + `]}],"max_tokens":1,"stream":false,"model":"m"}`
			if got := text(leg); got != want || leg.Length != int64(len(want)) {
				t.Errorf("segments of %d: %d bytes %s, want %s", segment, leg.Length, got, want)
			}
		}
	}
}

func TestNoMedia(t *testing.T) {
	for name, tc := range map[string]struct {
		api  pd.API
		body string
		err  string
	}{
		"text":            {pd.APIChat, `{"messages":[{"role":"user","content":"x"}]}`, ""},
		"another API":     {pd.APIMessages, chat(imageA), ""},
		"a reference":     {pd.APIChat, `{"messages":[{"content":[{"type":"image_embeds","image_embeds":{},"uuid":"x"}]}]}`, ""},
		"two types":       {pd.APIChat, chat(`{"type":"text","image_url":"x"}`), "one type"},
		"an escaped type": {pd.APIChat, chat(`{"type":"image\u005furl","image_url":"x"}`), "one type"},
		"too many parts":  {pd.APIChat, `{"messages":[{"content":[` + strings.Repeat(`{"type":"text"},`, 9000) + imageA + `]}]}`, "too many"},
		"no object":       {pd.APIChat, `[]`, ""},
	} {
		m, err := encode.MediaOf(asked(t, tc.api, tc.body, 1<<20))
		if m != nil || (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
}

// announced is an encoder's answer.
func announced(entries string) []byte {
	return []byte(`{"choices":[],"ec_transfer_params":{` + entries + `},"metrics":null}`)
}

func TestAnswers(t *testing.T) {
	m, err := encode.MediaOf(asked(t, pd.APIChat, chat(imageB, imageA), 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	entry := func(hash, items string) string {
		return fmt.Sprintf(`"%s":{"item_indices":%s,"metadata":{"image_grid_thw": [1, 4, 4]}}`, hash, items)
	}
	for name, tc := range map[string]struct {
		answer []byte
		err    string
	}{
		"right":          {announced(entry(hashA, "[0,2]") + "," + entry(hashB, "[1]")), ""},
		"all alike":      {announced(entry(hashA, "[2,1,0]")), ""},
		"SHA-512":        {announced(entry(hashA+hashB, "[0,1,2]")), ""},
		"no JSON":        {[]byte("OK"), "reading an encoder's answer"},
		"none":           {[]byte(`{"ec_transfer_params":null}`), "is that engine an encoder"},
		"a list":         {[]byte(`{"ec_transfer_params":[]}`), "reading an encoder's answer"},
		"no object":      {announced(`"` + hashA + `":7`), "says of an item"},
		"one is missing": {announced(entry(hashA, "[0,2]")), "has not announced item 1"},
		"one too many":   {announced(entry(hashA, "[0,1,2,3]")), "announces item 3"},
		"negative":       {announced(entry(hashA, "[-1]")), "announces item -1"},
		"twice":          {announced(entry(hashA, "[0,1]") + "," + entry(hashB, "[1,2]")), "twice"},
		"a counter":      {announced(entry("renderer0-mm-1-image-0", "[0,1,2]")), "--mm-processor-cache-gb=0"},
		"a path":         {announced(entry(strings.Repeat("../", 20), "[0,1,2]")), "hash"},
	} {
		err := m.NewEncodings().Add([]int{0, 1, 2}, tc.answer)
		if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, want %q", name, err, tc.err)
		}
	}
}

// Members of an answer reach the engines as the encoder wrote them.
func TestRequest(t *testing.T) {
	const about = `{ "item_indices":[0], "metadata":{"image_grid_thw": [1, 4, 4], "x": 1e3}, "peer_host":"10.0.0.1", "peer_port": 12345678901234567890}`
	sent := chat(imageB)
	reference := func(hash string) string {
		return `{"type":"image_embeds","image_embeds":{"image_grid_thw": [1, 4, 4], "x": 1e3},"uuid":"` + hash + `"}`
	}
	referenced := strings.Replace(strings.Replace(sent, imageB, reference(hashA), 1), imageA, reference(hashB), 1)
	params := `"ec_transfer_params":{"` + hashA + `":` + about + `,"` + hashB + `":` + about + `}}`
	for _, tc := range []struct {
		connector  string
		references bool
		sent, want string
		referenced bool
	}{
		{"ec-example", false, sent, sent, false},
		{"ec-example", true, sent, referenced, true},
		{"ec-nixl", false, sent, strings.TrimSuffix(sent, "}") + "," + params, false},
		{"ec-nixl", true, sent, strings.TrimSuffix(referenced, "}") + "," + params, true},
		{"ec-example", true, strings.Replace(sent, imageB, video, 1), strings.Replace(sent, imageB, video, 1), false},
		{"ec-example", true, strings.Replace(sent, `{"model"`, `{"ec_transfer_params":{"evil":1},"model"`, 1), referenced, true},
	} {
		m, err := encode.MediaOf(asked(t, pd.APIChat, tc.sent, 9))
		if err != nil {
			t.Fatal(err)
		}
		e := m.NewEncodings()
		for item, hash := range []string{hashA, hashB} { // two encoders
			if err := e.Add([]int{item}, announced(`"`+hash+`":`+about)); err != nil {
				t.Fatal(err)
			}
		}
		r, referenced, err := e.Request(encode.Find(tc.connector), tc.references)
		if err != nil || referenced != tc.referenced {
			t.Fatalf("%s: referenced %v, %v", tc.connector, referenced, err)
		}
		local, err := r.Local()
		if got := text(local); err != nil || got != tc.want {
			t.Errorf("%s, references %v: %v\n%s, want\n%s", tc.connector, tc.references, err, got, tc.want)
		}
	}
}

// An image without metadata, or without an address where the connector needs one, cannot be named by a reference: the engine that reads
// gets the media.
func TestNotReferable(t *testing.T) {
	const metadata, address = `"metadata":{"image_grid_thw":[1,4,4]}`, `,"peer_host":"10.0.0.1","peer_port":5601,"size_bytes":2048,"shape":[4,64]`
	for _, tc := range []struct {
		name, second string // what an encoder says of the second image
		files, nixl  bool   // whether the images become references
	}{
		{"announced in full", metadata + address, true, true},
		{"without an address", metadata, true, false},
		{"whose address is null", metadata + `,"peer_host":null`, true, false},
		{"evicted", `"metadata":{}`, false, false},
		{"evicted, with an address", `"metadata":{ }` + address, false, false},
		{"without metadata", `"metadata":null`, false, false},
		{"with a list for metadata", `"metadata":[1]`, false, false},
		{"with nothing", `"x":1`, false, false},
	} {
		for connector, want := range map[string]bool{"ec-example": tc.files, "ec-nixl": tc.nixl} {
			m, err := encode.MediaOf(asked(t, pd.APIChat, chat(imageB), 1<<20))
			if err != nil {
				t.Fatal(err)
			}
			e := m.NewEncodings()
			if err := e.Add([]int{0, 1}, announced(`"`+hashA+`":{"item_indices":[0],`+metadata+address+`},"`+hashB+`":{"item_indices":[1],`+tc.second+`}`)); err != nil {
				t.Fatal(err)
			}
			r, referenced, err := e.Request(encode.Find(connector), true)
			if err != nil || referenced != want {
				t.Fatalf("%s, an image %s: referenced %v, want %v (%v)", connector, tc.name, referenced, want, err)
			}
			local, err := r.Local()
			if has := strings.Contains(text(local), imageB); err != nil || has == want {
				t.Errorf("%s, an image %s: the engine gets the image: %v, %v", connector, tc.name, has, err)
			}
		}
	}
}

func TestNames(t *testing.T) {
	if encode.Find("ec-mooncake") != nil || encode.Find("ec-nixl") == nil || encode.Names() != "ec-example, ec-nixl" {
		t.Error(encode.Names())
	}
}

// BenchmarkEncode does all that the package does for a request with two images of 300 KB in a conversation.
func BenchmarkEncode(b *testing.B) {
	picture := func(c string) string {
		return `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat(c, 300_000) + `"}}`
	}
	said := strings.Repeat(`{"role":"user","content":"a conversation of some length"},`, 50)
	r := asked(b, pd.APIChat, `{"model":"m","messages":[`+said+`{"role":"user","content":[`+picture("A")+`,{"type":"text","text":"x"},`+picture("B")+`]}]}`, 256<<10)
	answer := announced(`"` + hashA + `":{"item_indices":[0],"metadata":{"image_grid_thw":[1,4,4]},"peer_host":"10.0.0.1"},"` +
		hashB + `":{"item_indices":[1],"metadata":{"image_grid_thw":[1,4,4]},"peer_host":"10.0.0.1"}`)
	b.SetBytes(r.Body.Len())
	b.ReportAllocs()
	for b.Loop() {
		m, err := encode.MediaOf(r)
		if err != nil {
			b.Fatal(err)
		}
		items := []int{0, 1}
		m.Leg(items)
		e := m.NewEncodings()
		if err := e.Add(items, answer); err != nil {
			b.Fatal(err)
		}
		if _, _, err := e.Request(encode.Find("ec-nixl"), true); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzEncode(f *testing.F) {
	f.Add(chat(imageB, audio), `"`+hashA+`":{"item_indices":[0,1,2],"metadata":{}}`)
	f.Add(`{"messages":[{"content":[{"image_url":{}}]}]}`, `"`+hashA+`":{"item_indices":[0]}`)
	d, _ := dialect.New("nixlv2", dialect.Options{})
	table := dialect.Members(d)
	f.Fuzz(func(t *testing.T, sent, entries string) {
		var scan body.Scanner
		if scan.Scan(table.Members(), body.Limits{}, []byte(sent)) != nil {
			return
		}
		b := &body.Body{}
		b.Append([]byte(sent))
		m, err := encode.MediaOf(table.Request(pd.APIChat, b, &scan))
		if err != nil || m == nil {
			return
		}
		all := make([]int, m.Len())
		for i := range all {
			all[i] = i
		}
		if m.Leg(all).Length == 0 {
			t.Fatal("an empty leg")
		}
		e := m.NewEncodings()
		if e.Add(all, announced(entries)) != nil {
			return
		}
		for _, c := range encode.Connectors {
			r, _, err := e.Request(&c, true)
			if err != nil {
				t.Fatalf("%s with %s: %v", sent, entries, err)
			}
			if _, err := r.Local(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
