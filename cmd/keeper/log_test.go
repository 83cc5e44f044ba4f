package main

import (
	"bytes"
	"encoding/json"
	"os"
	"sync"
	"testing"
)

// keeperLog keeps the JSON log of a process. It may be written and read from several goroutines.
type keeperLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *keeperLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// process returns the process that the next line of the log names.
func (l *keeperLog) process(t *testing.T) *os.Process {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	return pidIn(t, json.NewDecoder(&l.text))
}

// pidIn returns the process that a JSON log names as running.
func pidIn(t *testing.T, log *json.Decoder) *os.Process {
	t.Helper()
	var line struct{ PID int }
	if err := log.Decode(&line); err != nil || line.PID == 0 {
		t.Fatalf("pid %d, %v", line.PID, err)
	}
	process, err := os.FindProcess(line.PID)
	if err != nil {
		t.Fatal(err)
	}
	return process
}
