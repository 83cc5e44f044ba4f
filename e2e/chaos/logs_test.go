package chaos

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// logFile is where a container runtime writes the output of a program. While its disk stalls, it takes nothing, the runtime stops
// reading, and the program's pipe fills.
type logFile struct {
	disk sync.Mutex // locked while it stalls; guards text
	text bytes.Buffer

	stalled bool
}

// Write implements io.Writer.
func (l *logFile) Write(p []byte) (int, error) {
	l.disk.Lock()
	defer l.disk.Unlock()
	return l.text.Write(p)
}

func (l *logFile) stall() {
	l.disk.Lock()
	l.stalled = true
}

func (l *logFile) resume() {
	if l.stalled {
		l.stalled = false
		l.disk.Unlock()
	}
}

var droppedLines = regexp.MustCompile(`msg="log lines were dropped, because stderr did not take them in time" lines=(\d+)\n`)

// dropped returns how many lines the log says were dropped.
func (l *logFile) dropped(t *testing.T) (sum int) {
	t.Helper()
	l.disk.Lock()
	defer l.disk.Unlock()
	for _, line := range droppedLines.FindAllSubmatch(l.text.Bytes(), -1) {
		n, err := strconv.Atoi(string(line[1]))
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// startLogged runs a program whose output goes into a file that can stall.
func startLogged(t *testing.T, what stack.Program) (harness.Program, *logFile) {
	t.Helper()
	file := &logFile{}
	what.Log = file
	p := harness.Start(t, what)
	t.Cleanup(file.resume) // or it could not end
	return p, file
}

// A picker and a sidecar whose logs are not read serve on, however much they log, and later say how many lines are missing.
func TestStalledLogs(t *testing.T) {
	f := harness.NewFleet(t, 1, 0)
	engine := harness.StartSim(t, "decode-0", "--role=decode", "--time-scale=0")
	what, err := stack.Sidecar(harness.BinDir, engine.Addr, "--log-level=debug")
	if err != nil {
		t.Fatal(err)
	}
	sidecar, sidecarLog := startLogged(t, what)
	f.Decode = []harness.DecodePod{{Engine: engine, Sidecar: sidecar}}
	f.WriteEndpoints(t)
	// A picker logs nothing about requests that it serves. This plugin logs an error about each, in a long line.
	f.WriteConfig(t, strings.Replace(fmt.Sprintf(harness.PdConfig, harness.Threshold, ""), "plugins:\n", fmt.Sprintf(`plugins:
- type: request-attribute-reporter
  parameters:
    attributes:
    - key:
        name: %s
      expression: usage.unknown
`, strings.Repeat("long", 2000)), 1))
	picker, pickerLog := startLogged(t, stack.EPP(harness.BinDir, "--secure-serving=false", "--config-file="+f.Config, "--endpoints-file="+f.Endpoints,
		"--log-level=debug"))
	f.Pickers = []harness.Program{picker}
	f.StartFront(t, harness.Layout{Proxy: "gateway", Mode: "pair"})

	pickerLog.stall()
	sidecarLog.stall()
	const metric = "tandem_log_dropped_total"
	sent := 0
	for harness.Sample(t, picker.Addr("metrics"), metric) == 0 || harness.Sample(t, sidecar.Addr("metrics"), metric) == 0 {
		var asked []<-chan harness.Reply
		for range chaosClients {
			c := f.TokensCall(harness.Threshold/2, false)
			c.Tokens = 1
			c.Header = map[string]string{pd.HeaderRequestID: fmt.Sprintf("%0100d", sent)}
			asked = append(asked, harness.Begin(t, c, f.Front.Addr, f.Model))
			sent++
		}
		for _, got := range asked {
			if r := <-got; r.Status != http.StatusOK {
				t.Fatalf("while the logs stall, a request gets %d %s", r.Status, r.Body)
			}
		}
	}
	t.Logf("%d requests until both dropped lines", sent)
	f.MustServe(t, []harness.Call{f.TokensCall(harness.Threshold/2, false), f.TokensCall(harness.Threshold/2, true),
		f.TokensCall(2*harness.Threshold, false), f.TokensCall(2*harness.Threshold, true)})

	pickerLog.resume()
	sidecarLog.resume()
	f.MustServe(t, []harness.Call{f.TokensCall(2*harness.Threshold, true)})
	for _, one := range []struct {
		program harness.Program
		log     *logFile
	}{{picker, pickerLog}, {sidecar, sidecarLog}} {
		f.Eventually(t, "lines that the log of "+one.program.Name()+" says are missing", func() (string, bool) {
			told, counted := one.log.dropped(t), int(harness.Sample(t, one.program.Addr("metrics"), metric))
			return fmt.Sprintf("%d of %d", told, counted), told == counted
		})
	}
	f.MustRest(t)
}
