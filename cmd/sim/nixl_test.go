//go:build nixl && cgo && linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/transfer/transfertest"
)

func TestNIXLIsMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libnixl_capi.so")
	if said := missing(t, "--nixl-library="+path); !strings.Contains(said, path) {
		t.Errorf("stderr %q", said)
	}
}

// startEngine runs the program over NIXL, and returns the address of its API.
func startEngine(t *testing.T, library string) (cmd *exec.Cmd, address string) {
	t.Helper()
	cmd = exec.Command("sim", "--port=0", "--admin-port=0", "--time-scale=0", "--transport=nixl", "--nixl-library="+library)
	cmd.Stderr = t.Output()
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has already ended unless the test failed
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var ready struct{ Addresses struct{ HTTP string } }
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err != nil {
		t.Fatalf("it said %q: %v", line, err)
	}
	return cmd, ready.Addresses.HTTP
}

func askEngine(t *testing.T, address, body string) (answer struct {
	Params json.RawMessage `json:"kv_transfer_params"`
	Usage  json.RawMessage
}) {
	t.Helper()
	resp, err := http.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", resp.Status, text, err)
	}
	return answer
}

// TestOverNIXL: a prompt is handed off between two programs, and both end on request.
func TestOverNIXL(t *testing.T) {
	library := transfertest.NIXLLibrary(t)
	prefill, from := startEngine(t, library)
	decode, to := startEngine(t, library)
	const prompt = `{"prompt":"a prompt that fills more than one block of tokens, so that something moves",
		"max_tokens":4,"kv_transfer_params":%s}`
	offer := askEngine(t, from, fmt.Sprintf(prompt, `{"do_remote_decode":true}`)).Params
	if !bytes.Contains(offer, []byte(`"do_remote_prefill":true`)) {
		t.Fatalf("no hand-off: %s", offer)
	}
	askEngine(t, to, fmt.Sprintf(prompt, offer))
	resp, err := http.Get("http://" + to + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Contains(page, []byte(`source="local_compute"} 0.0`)) {
		t.Errorf("%v: decode computed the prompt itself", err)
	}
	http.DefaultClient.CloseIdleConnections()
	for _, cmd := range []*exec.Cmd{decode, prefill} {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("it ended with %v", err)
		}
	}
}
