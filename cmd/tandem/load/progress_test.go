package load

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/tandem/client"
)

func TestProgressOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var screen strings.Builder
		p := &progress{to: &screen, terminal: true, rounds: 4}
		p.begin("auto", &point{tokens: 512}, 1, 3)
		p.sent()
		p.sent() // too soon after the last update
		time.Sleep(refresh)
		p.answered(&client.Answer{})
		time.Sleep(refresh)
		p.answered(&client.Answer{Failure: &client.Failure{}})
		p.end(&round{})
		p.clear()
		const head = boot.EraseLine + "1/4 round 1, auto, 512 input tokens: "
		want := head + "0 of 3 answered, 0 in flight, 0 failed" + head + "1 of 3 answered, 1 in flight, 0 failed" +
			head + "1 of 3 answered, 0 in flight, 1 failed" + boot.EraseLine
		if screen.String() != want {
			t.Errorf("%q\nwant %q", screen.String(), want)
		}
	})
}

func TestProgressElsewhere(t *testing.T) {
	var log strings.Builder
	p := &progress{to: &log, rounds: 2}
	p.say("not shown")
	p.begin("auto", &point{}, 1, 3)
	p.answered(&client.Answer{Failure: &client.Failure{}})
	p.end(&round{took: 1500 * time.Millisecond})
	p.clear()
	if want := "1/2 round 1, auto: 0 of 3 answered in 1.5 s, 1 failed\n"; log.String() != want {
		t.Errorf("%q, want %q", log.String(), want)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if boot.IsTerminal(file) || boot.IsTerminal(&log) {
		t.Error("detected as a terminal")
	}
}
