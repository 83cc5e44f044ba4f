package connectors_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/pd"
)

// encoders is the name of the suite of encoders, for -connectors.only.
const encoders = "encoders"

// seers are engines of a model that sees. decode reads encodings too: it is the engine that does both in E/PD, and finds the encoding
// again if it has to compute a prompt whose KV cache did not come.
type seers struct {
	store                           string
	plain, encoder, prefill, decode *realengine.Engine
}

// testEncoders runs the suite.
func testEncoders(t *testing.T) {
	began := time.Now()
	s := &seers{store: t.TempDir()}
	var starting sync.WaitGroup
	for to, o := range map[**realengine.Engine]vllm.Options{
		&s.plain:   {Name: "plain"},
		&s.encoder: {Name: "encoder", Encodings: vllm.Encoder},
		&s.prefill: {Name: "prefill", Role: vllm.Prefill, Encodings: vllm.EncodingReader},
		&s.decode:  {Name: "decode", Role: vllm.Decode, Encodings: vllm.EncodingReader},
	} {
		o.Vision, o.Store = true, s.store
		starting.Go(func() { *to = startEngine(t, o) })
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	fmt.Printf("ready  %6.1f s  %s\n", time.Since(began).Seconds(), encoders)
	for _, c := range []struct {
		name string
		run  func(t *testing.T, s *seers)
	}{
		{"answers", testEncodedAnswers},
		{"the encoding is read", testEncodingIsRead},
		{"a refused image", testRefusedImage},
		{"encoder stopped", testEncoderStopped},
		{"encoder killed", testEncoderKilled},
	} {
		began = time.Now()
		passed := t.Run(c.name, func(t *testing.T) { c.run(t, s) })
		fmt.Printf("%-6s %6.1f s  %s: %s\n", map[bool]string{true: "passed", false: "FAILED"}[passed], time.Since(began).Seconds(), encoders, c.name)
	}
}

// newImage returns an image that no engine has seen, as an item of a message.
func newImage(t *testing.T) map[string]any {
	t.Helper()
	picture := image.NewRGBA(image.Rect(0, 0, 56, 56))
	for i := range picture.Pix {
		picture.Pix[i] = byte(rand.Uint32())
	}
	var b bytes.Buffer
	must(t, png.Encode(&b, picture))
	return map[string]any{"type": "image_url", "image_url": map[string]any{"url": "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())}}
}

// ask returns a call about images.
func (s *seers) ask(stream bool, images ...map[string]any) harness.Call {
	var content []any
	for _, i := range images {
		content = append(content, i)
	}
	content = append(content, map[string]any{"type": "text", "text": "what is it"})
	return harness.Call{API: pd.APIChat, Stream: stream, Tokens: 8, Members: map[string]any{"messages": []any{map[string]any{"role": "user", "content": content}}}}
}

// by adds the encoder to a call, and the prefill engine if prompts are computed there.
func (s *seers) by(c harness.Call, remote bool, encoders ...string) harness.Call {
	c.Header = map[string]string{pd.HeaderEncode: strings.Join(encoders, ",")}
	if remote {
		c.Header[pd.HeaderPrefill] = s.prefill.Address()
	}
	return c
}

// want is the plain engine's answer.
func (s *seers) want(t *testing.T, c harness.Call) answer.Answer {
	t.Helper()
	return harness.MustSend(t, c, s.plain.Address(), realengine.Model)
}

// watched is the way to an engine, which notes whether an image passed.
type watched struct {
	addr string

	mu     sync.Mutex // guards images
	images int
}

// watch returns the way to an engine.
func watch(t *testing.T, engine *realengine.Engine) *watched {
	t.Helper()
	w := &watched{}
	to := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: engine.Address()}) }, FlushInterval: -1}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.images += bytes.Count(body, []byte("base64"))
		w.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		to.ServeHTTP(rw, r)
	}))
	t.Cleanup(server.Close)
	w.addr = strings.TrimPrefix(server.URL, "http://")
	return w
}

// seen returns how many images have passed.
func (w *watched) seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.images
}

// start starts a sidecar on the way to the decode engine.
func (s *seers) start(t *testing.T, decode string, flags ...string) string {
	t.Helper()
	flags = append(flags, "--kv-connector=nixlv2", "--ec-connector=ec-example", "--fallback-ratio=1", "--fallback-burst=1000")
	return harness.StartSidecar(t, decode, flags...).Addr("http")
}

// files returns the hashes of the encodings in the store.
func (s *seers) files(t *testing.T) (hashes []string) {
	t.Helper()
	entries, err := os.ReadDir(s.store)
	must(t, err)
	for _, e := range entries {
		hashes = append(hashes, e.Name())
	}
	return hashes
}

// testEncodedAnswers asks about images, by encoder, prefill and decode, and by encoder and decode. With references no image reaches
// decode, or prefill.
func testEncodedAnswers(t *testing.T, s *seers) {
	for _, references := range []bool{false, true} {
		for _, remote := range []bool{true, false} {
			harness.BothForms(t, func(t *testing.T, stream bool) {
				t.Run(fmt.Sprintf("references %v, prefill %v", references, remote), func(t *testing.T) {
					decode, prefill := watch(t, s.decode), watch(t, s.prefill)
					sidecar := s.start(t, decode.addr, fmt.Sprintf("--encoder-references=%v", references))
					one, another := newImage(t), newImage(t)
					for _, images := range [][]map[string]any{{one}, {another, one, another}, {}} {
						c := s.ask(stream, images...)
						before, seen := len(s.files(t)), decode.seen()+prefill.seen()
						want := s.want(t, c)
						c = s.by(c, remote, s.encoder.Address())
						if remote {
							c.Header[pd.HeaderPrefill] = prefill.addr
						}
						got := harness.MustSend(t, c, sidecar, realengine.Model)
						mustEqual(t, c, got, want)
						mustBe(t, got, map[bool]pd.Verdict{true: pd.Remote, false: pd.Local}[remote])
						if written := len(s.files(t)) - before; written != min(1, len(images)) {
							t.Errorf("the encoder has written %d encodings for %d images", written, len(images))
						}
						if passed := decode.seen() + prefill.seen() - seen; references && passed > 0 {
							t.Errorf("%d images have reached prefill or decode", passed)
						}
					}
					fmt.Printf("       references %-5v  prefill %-5v  stream %-5v  images at decode: %d, at prefill: %d\n", references, remote, stream, decode.seen(), prefill.seen())
				})
			})
		}
	}
}

// testEncodingIsRead replaces an encoding by that of another image: the answer is then that to the other one.
func testEncodingIsRead(t *testing.T, s *seers) {
	sidecar := s.start(t, s.decode.Address())
	for _, remote := range []bool{true, false} {
		first, second := s.ask(false, newImage(t)), s.ask(false, newImage(t))
		before := s.files(t)
		harness.MustSend(t, s.by(first, remote, s.encoder.Address()), sidecar, realengine.Model)
		hash := slices.DeleteFunc(s.files(t), func(h string) bool { return slices.Contains(before, h) })
		before = s.files(t)
		harness.MustSend(t, second, s.encoder.Address(), realengine.Model)
		other := slices.DeleteFunc(s.files(t), func(h string) bool { return slices.Contains(before, h) })
		if len(hash) != 1 || len(other) != 1 {
			t.Fatalf("encodings %v and %v", hash, other)
		}
		content, err := os.ReadFile(filepath.Join(s.store, hash[0], "encoder_cache.safetensors"))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(s.store, other[0], "encoder_cache.safetensors"), content, 0o644))
		got := harness.MustSend(t, s.by(second, remote, s.encoder.Address()), sidecar, realengine.Model)
		if right, read := s.want(t, second), s.want(t, first); slices.Equal(got.Tokens, right.Tokens) || !slices.Equal(got.Tokens, read.Tokens) {
			t.Errorf("prefill %v: %v; with the encoding in the store %v, with that of the image %v", remote, got.Tokens, read.Tokens, right.Tokens)
		}
	}
}

// testRefusedImage has the engines refuse an image: the client gets their words.
func testRefusedImage(t *testing.T, s *seers) {
	sidecar := s.start(t, s.decode.Address(), "--encoder-references=true")
	broken := map[string]any{"type": "image_url", "image_url": map[string]any{"url": "data:image/png;base64,AAAA"}}
	for _, remote := range []bool{true, false} {
		c := s.ask(false, broken)
		want := s.want(t, c)
		got := harness.MustSend(t, s.by(c, remote, s.encoder.Address()), sidecar, realengine.Model)
		if got.Status != http.StatusBadRequest || got.Body != want.Body {
			t.Errorf("prefill %v: status %d %s, the plain engine says %d %s", remote, got.Status, got.Body, want.Status, want.Body)
		}
	}
}

// testEncoderStopped has the encoder hang: what computes the prompt encodes. Then it goes on.
func testEncoderStopped(t *testing.T, s *seers) {
	sidecar := s.start(t, s.decode.Address(), "--encoder-references=true")
	must(t, s.encoder.Pause())
	s.mustServeWithout(t, sidecar, "stopped")
	must(t, s.encoder.Resume())
}

// testEncoderKilled kills the encoder.
func testEncoderKilled(t *testing.T, s *seers) {
	sidecar := s.start(t, s.decode.Address(), "--encoder-references=true")
	must(t, s.encoder.Kill())
	s.mustServeWithout(t, sidecar, "killed")
}

// mustServeWithout fails unless requests are answered rightly while the encoder does not answer.
func (s *seers) mustServeWithout(t *testing.T, sidecar, what string) {
	t.Helper()
	for _, remote := range []bool{true, false} {
		for _, stream := range []bool{false, true} {
			c := s.ask(stream, newImage(t))
			want := s.want(t, c)
			began := time.Now()
			got := harness.MustSend(t, s.by(c, remote, s.encoder.Address()), sidecar, realengine.Model)
			mustEqual(t, c, got, want)
			fmt.Printf("       encoder %s  prefill %-5v  stream %-5v  answered after %d ms, %v\n", what, remote, stream, time.Since(began).Milliseconds(), got.Decision)
		}
	}
}
