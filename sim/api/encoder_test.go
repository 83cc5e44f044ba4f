package api_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
)

var contentHash = regexp.MustCompile(`[0-9a-f]{64}`)

// named replaces the hashes of images by numbers, in the order in which they appear.
func named(w simtest.Wire) simtest.Wire {
	numbers := map[string]int{}
	w.Body = contentHash.ReplaceAllFunc(w.Body, func(hash []byte) []byte {
		if _, known := numbers[string(hash)]; !known {
			numbers[string(hash)] = len(numbers)
		}
		return fmt.Appendf(nil, "image-%d", numbers[string(hash)])
	})
	return w
}

func withEncodings(role sim.EncodingRole, store string) func(*sim.Config) {
	return func(c *sim.Config) { c.Encoding = sim.EncodingConfig{Role: role, Store: store} }
}

func TestGoldenEncoder(t *testing.T) {
	store := t.TempDir()
	encoder, reader := simtest.Start(t, withEncodings(sim.Encoder, store)), simtest.Start(t, withEncodings(sim.EncodingReader, store))
	for name, engine := range map[string]*server.Server{"ec-one-image": encoder, "ec-three-items": encoder, "ec-text": encoder, "ec-eight-tokens": encoder,
		"ec-stream": encoder, "ec-broken-image": encoder, "ec-consumer": reader} {
		t.Run(name, func(t *testing.T) {
			r := recordings.Read(t, name)
			got := simtest.ParseWire(t, simtest.Exchange(t, engine.URL, r.Request))
			recordings.Compare(t, named(got), named(simtest.ParseWire(t, r.Response)), false)
		})
	}
}

// askImage asks about an image, or a reference to its encoding.
func askImage(t *testing.T, s *server.Server, item string) simtest.Reply {
	t.Helper()
	return simtest.Do(t, "POST", s.URL+"/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":[%s,{"type":"text","text":"what is it"}]}],"max_tokens":6,"temperature":0,"return_token_ids":true}`, item),
		"Content-Type", "application/json")
}

const (
	anImage   = `{"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}`
	reference = `{"type":"image_embeds","image_embeds":{"image_grid_thw":%s},"uuid":"%s"}`
)

// TestEncodings shows that a reader reads what an encoder has written, and dies, as the real engine, of a reference to anything else.
func TestEncodings(t *testing.T) {
	store := t.TempDir()
	encoder, plain := simtest.Start(t, withEncodings(sim.Encoder, store)), simtest.Start(t)
	var encoded struct {
		Params map[string]struct {
			Metadata struct {
				Grid json.RawMessage `json:"image_grid_thw"`
			} `json:"metadata"`
		} `json:"ec_transfer_params"`
	}
	askImage(t, encoder, anImage).Decode(t, &encoded)
	if len(encoded.Params) != 1 {
		t.Fatalf("announced %v", encoded.Params)
	}
	var hash, grid string
	for name, about := range encoded.Params {
		hash, grid = name, string(about.Metadata.Grid)
	}
	tokens := func(s *server.Server, item string) (c simtest.Completion) {
		askImage(t, s, item).Decode(t, &c)
		return c
	}
	right := tokens(plain, anImage).Tokens()
	reader := simtest.Start(t, withEncodings(sim.EncodingReader, store))
	for _, item := range []string{anImage, fmt.Sprintf(reference, grid, hash)} {
		if got := tokens(reader, item).Tokens(); fmt.Sprint(got) != fmt.Sprint(right) {
			t.Errorf("%s gives %v, a plain engine says %v", item, got, right)
		}
	}
	file := filepath.Join(store, hash, "encoder_cache.json")
	if err := os.WriteFile(file, []byte("[20,21,22,23]"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := tokens(reader, anImage).Tokens(); fmt.Sprint(got) == fmt.Sprint(right) {
		t.Errorf("the reader did not read the file: %v", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := tokens(reader, anImage).Tokens(); fmt.Sprint(got) != fmt.Sprint(right) {
		t.Errorf("without the file it encodes %v, a plain engine %v", got, right)
	}
	for name, item := range map[string]string{"lost": fmt.Sprintf(reference, grid, hash), "of another size": fmt.Sprintf(reference, "[1,8,8]", hash),
		"of no hash": fmt.Sprintf(reference, grid, "../x")} {
		t.Run(name, func(t *testing.T) {
			victim := simtest.Start(t, withEncodings(sim.EncodingReader, store))
			if r := askImage(t, victim, item); r.Status != 500 {
				t.Errorf("status %d", r.Status)
			}
			<-victim.Engine.Done()
		})
	}
}

// readTokens returns the tokens of an answer about an item, with the ec_transfer_params that the encoder has announced.
func readTokens(t *testing.T, s *server.Server, item, params string) simtest.Reply {
	t.Helper()
	return simtest.Do(t, "POST", s.URL+"/v1/chat/completions", fmt.Sprintf(`{"messages":[{"role":"user","content":[%s,{"type":"text","text":"what is it"}]}],`+
		`"max_tokens":6,"temperature":0,"return_token_ids":true,"ec_transfer_params":%s}`, item, params), "Content-Type", "application/json")
}

// TestFetchedEncodings shows that a reader fetches what an encoder announces, as vLLM's ECCPUConnector: what it cannot fetch it encodes, and
// fails the request if that has no image. Without an address, a reference ends the engine.
func TestFetchedEncodings(t *testing.T) {
	fetching := func(role sim.EncodingRole) func(*sim.Config) {
		return func(c *sim.Config) { c.Encoding = sim.EncodingConfig{Role: role, Fetch: true, Keep: 1} }
	}
	encoder, plain := simtest.Start(t, fetching(sim.Encoder)), simtest.Start(t)
	announce := func(item string) (hash, params string, about map[string]json.RawMessage) {
		t.Helper()
		var encoded struct {
			Params map[string]json.RawMessage `json:"ec_transfer_params"`
		}
		askImage(t, encoder, item).Decode(t, &encoded)
		for hash = range encoded.Params {
			if err := json.Unmarshal(encoded.Params[hash], &about); err != nil {
				t.Fatal(err)
			}
		}
		all, err := json.Marshal(encoded.Params)
		if err != nil || len(encoded.Params) != 1 {
			t.Fatalf("announced %s, %v", all, err)
		}
		return hash, string(all), about
	}
	hash, params, about := announce(anImage)
	if string(about["size_bytes"]) != "1024" || string(about["shape"]) != "[4,64]" || about["peer_host"] == nil {
		t.Errorf("announced %s", params)
	}
	named := fmt.Sprintf(reference, "[1,4,4]", hash)
	var want simtest.Completion
	askImage(t, plain, anImage).Decode(t, &want)
	mustRead := func(name string, r simtest.Reply) {
		t.Helper()
		var got simtest.Completion
		r.Decode(t, &got)
		if fmt.Sprint(got.Tokens()) != fmt.Sprint(want.Tokens()) {
			t.Errorf("%s: %v, a plain engine says %v", name, got.Tokens(), want.Tokens())
		}
	}
	for name, item := range map[string]string{"image": anImage, "reference": named} {
		mustRead(name, readTokens(t, simtest.Start(t, fetching(sim.EncodingReader)), item, params))
	}
	reader := simtest.Start(t, fetching(sim.EncodingReader))
	for name, wrong := range map[string]string{
		"of another size":  strings.Replace(params, "1024", "1025", 1),
		"of other rows":    strings.Replace(params, "[4,64]", "[8,32]", 1),
		"at a closed port": regexp.MustCompile(`"peer_port":\d+`).ReplaceAllString(params, `"peer_port":1`),
	} {
		mustRead("image "+name, readTokens(t, reader, anImage, wrong))
		if r := readTokens(t, reader, named, wrong); r.Status != 500 {
			t.Errorf("reference %s: status %d", name, r.Status)
		}
	}
	const another = `{"type":"image_url","image_url":{"url":"http://x/another"}}`
	if announce(another); readTokens(t, reader, named, params).Status != 500 {
		t.Error("the encoder has given what it had evicted")
	}
	var both struct {
		Params map[string]json.RawMessage `json:"ec_transfer_params"`
	}
	askImage(t, encoder, anImage+","+another).Decode(t, &both)
	if got := string(both.Params[hash]); got != `{"item_indices":[0],"metadata":{}}` {
		t.Errorf("what it has evicted it announces as %s", got)
	}
	readTokens(t, reader, named, "{}") // the answer of a dying engine
	<-reader.Engine.Done()
}
