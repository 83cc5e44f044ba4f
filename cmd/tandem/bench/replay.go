package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// replayed is an hour of requests as long as those of Mooncake's conversation trace, 12,031 requests over 16 engines, with the picker's
// built-in configuration: P/D and prefix scoring.
var replayed = []string{"replay", "--requests=12031", "--rate=3.342", "--input-tokens=512-24000", "--output-tokens=1-686", "--pool=8P+8D"}

// maxReplay is an hour in seconds of CPU time at 3,000 times real time.
const maxReplay = 3600.0 / 3000

// measureReplay measures the CPU time of replaying an hour on one core.
func measureReplay(ctx context.Context, l *lab, o options) (Row, error) {
	var took []float64
	for range o.rounds {
		cmd := exec.CommandContext(ctx, filepath.Join(l.dir, "tandem"), replayed...)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil {
			return Row{}, fmt.Errorf("replaying an hour: %w: %s", err, bytes.TrimSpace(said.Bytes()))
		}
		took = append(took, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	}
	return absolute(tableAbsolute, "replay, an hour over 16 engines, CPU time, s", took, maxReplay), nil
}
