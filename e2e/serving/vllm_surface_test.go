package serving

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/stack"
)

// surfaceDifferences are the recorded requests, by the name of their file, that the simulated engine answers in another
// shape than the real one, and why that may stay so. They are the whole list: one that is not here must have the same shape,
// one that is here must not.
var surfaceDifferences = map[string]string{}

// notTheSurface are recordings that no request alone makes again: legs of hand-offs, encoders, and engines in some state or with other
// flags. The suite of the pair and the simulator's own tests have those.
var notTheSurface = regexp.MustCompile(`^(ec-|pd-|pdfail-|err-503-|render-disabled)`)

// testSurface sends what was once sent to a real engine, byte for byte, to the real engine of today and to a simulated one.
func testSurface(t *testing.T) {
	sim := harness.Start(t, stack.Sim(harness.BinDir, "simulated", "--enable-scale-out")).Addr("http")
	files, err := filepath.Glob(filepath.Join(harness.Root, "sim", "api", "testdata", "golden", "*.http"))
	if err != nil || len(files) < 50 {
		t.Fatalf("%d recordings: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".http")
		if notTheSurface.MatchString(name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			recording, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			request, _, _ := bytes.Cut(recording, []byte("\n=====8<====="))
			real, simulated := surface(t, engines.plain.Address(), request), surface(t, sim, request)
			_, may := surfaceDifferences[name]
			switch {
			case real != simulated && !may:
				t.Errorf("the real engine answers\n%s\nthe simulated one\n%s", real, simulated)
			case real == simulated && may:
				t.Error("both answer alike, so surfaceDifferences should not have it")
			}
		})
	}
}

// likelyTokens are members that are called by the text of a token.
var likelyTokens = regexp.MustCompile(`top_logprobs:\[\{.*?:number \}\]`)

// surface returns the shape of what an engine answers.
func surface(t *testing.T, addr string, request []byte) string {
	t.Helper()
	return likelyTokens.ReplaceAllString(shape(t, exchange(t, addr, request)), "top_logprobs:[]")
}

// exchange sends the bytes of a request and gives those of the answer.
func exchange(t *testing.T, addr string, request []byte) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(harness.Within(t), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	var answer bytes.Buffer
	method, _, _ := strings.Cut(string(request), " ")
	resp, err := http.ReadResponse(bufio.NewReader(io.TeeReader(conn, &answer)), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return answer.String()
}
