package kvcache

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/epp/kvfeed"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// What engines have told before a replica starts: a million blocks in all. vLLM keeps its last 10,000 messages by default.
const (
	warmPods     = 16
	warmMessages = 6250 // of each engine
	warmBlocks   = 10   // of each message, which stores a prompt of its own
	warmTokens   = 16   // of each block
)

// warmPrompt returns the token ids of what a message stores.
func warmPrompt(pod, message int) (ids []int) {
	for i := range warmBlocks * warmTokens {
		ids = append(ids, 300+(pod*warmMessages+message)*(1+i%2)%60_000+i)
	}
	ids[0], ids[1] = pod, message // the only ones with these
	return ids
}

// warmMessage returns a message as vLLM writes it.
func warmMessage(pod, message int) []byte {
	text := func(b []byte, s string) []byte { return append(append(b, 0xd9, byte(len(s))), s...) }
	array := func(b []byte, n int) []byte { return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n)) }
	b := append(array(nil, 3), 0xcb, 0, 0, 0, 0, 0, 0, 0, 0) // at 0.0 s
	b = append(array(b, 1), 0x85)                            // an event with five members
	b = text(text(b, "type"), "BlockStored")
	b = array(text(b, "block_hashes"), warmBlocks)
	for i := range warmBlocks {
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), uint64((pod*warmMessages+message)*warmBlocks+i+1)*0x9e3779b97f4a7c15)
	}
	b = append(text(b, "parent_block_hash"), 0xc0)
	b = array(text(b, "token_ids"), warmBlocks*warmTokens)
	for _, id := range warmPrompt(pod, message) {
		b = binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(id))
	}
	b = append(text(b, "block_size"), warmTokens)
	return append(b, 0) // the rank
}

// startReplaying runs an engine's PUB and ROUTER sockets, at a port and the next one. It publishes nothing new, and sends the messages again that
// pickers ask for.
func startReplaying(t *testing.T, host string, port int, messages [][]byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	serve := func(port int, serve func(net.Listener) error) {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err != nil {
			cancel()
			t.Fatal(err)
		}
		go func() { ended <- serve(l) }()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	serve(port, func(l net.Listener) error { return new(zmtp.Publisher).Serve(ctx, l) })
	serve(port+1, func(l net.Listener) error {
		return zmtp.Reply(ctx, l, func(request [][]byte, send func(...[]byte) error) error {
			from := binary.BigEndian.Uint64(request[len(request)-1])
			for ; from < uint64(len(messages)); from++ {
				if err := send(nil, nil, number(from), messages[from]); err != nil {
					return err
				}
			}
			return send(nil, nil, number(^uint64(0)), nil)
		})
	})
}

// TestColdReplicas: pickers that start while 16 engines hold a million blocks know all of them by replay over TCP, and where each prompt is. How long
// that took since each was started is printed; the limit is 2 s. The engines' sockets are in the test's process, on the same processors.
func TestColdReplicas(t *testing.T) {
	port := harness.FreePorts(t, 2)
	dir := t.TempDir()
	fleet := &harness.Fleet{Config: filepath.Join(dir, "config.yaml"), Endpoints: filepath.Join(dir, "endpoints.yaml")}
	named, told := "- type: "+producer, fmt.Sprintf("- {type: %s, parameters: {kvEventsConfig: {podDiscoveryConfig: {socketPort: %d, replaySocketPort: %d}}}}", producer, port, port+1)
	fleet.WriteConfig(t, strings.Replace(precise(1, 0), named, told, 1))
	var pods []string
	for pod := range warmPods {
		host := fmt.Sprintf("127.0.2.%d", pod+1)
		messages := make([][]byte, warmMessages)
		for i := range messages {
			messages[i] = warmMessage(pod, i)
		}
		startReplaying(t, host, port, messages)
		pods = append(pods, host+":8000")
	}
	fleet.WriteEndpoints(t, pods...)
	for _, replica := range []string{"first", "second"} {
		began := time.Now()
		p := fleet.StartPicker(t)
		started := time.Since(began)
		const want = warmPods * warmMessages * warmBlocks
		var state kvfeed.State
		fleet.Eventually(t, fmt.Sprintf("%d blocks at the %s replica", want, replica), func() (string, bool) {
			state = stateOf(t, p)
			return fmt.Sprint(state.Blocks), state.Blocks == want
		})
		warm := time.Since(began)
		for _, e := range state.Endpoints {
			if len(e.Sources) != 1 || e.Sources[0].Blocks != want/warmPods || e.Sources[0].Lost != 0 || len(e.Sources[0].Skipped) > 0 {
				t.Errorf("%s replica: %+v", replica, e)
			}
		}
		for _, at := range [][2]int{{0, 0}, {3, 17}, {warmPods - 1, warmMessages - 1}} {
			got := holders(t, p, "m", warmPrompt(at[0], at[1]))
			if len(got) != 1 || got[0].Address != pods[at[0]] || got[0].Tokens != warmBlocks*warmTokens || got[0].How != "events" {
				t.Errorf("%s replica: prompt %d is at %+v, want %d tokens at %s by events", replica, at, got, warmBlocks*warmTokens, pods[at[0]])
			}
		}
		fmt.Printf("       %s replica: %d blocks of %d engines are known %.2f s after its start; it served after %.2f s\n", replica, want, len(pods), warm.Seconds(), started.Seconds())
	}
}

// holders returns which endpoints have how many tokens of a prompt, as a picker says.
func holders(t *testing.T, p harness.Program, model string, ids []int) (all []kvfeed.Held) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": model, "ids": ids})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := harness.Client.Post("http://"+p.Addr("admin")+"/debug/prefix", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var page struct{ Producers map[string][]kvfeed.Held }
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	for _, h := range page.Producers[producer] {
		if h.Tokens > 0 {
			all = append(all, h)
		}
	}
	return all
}
