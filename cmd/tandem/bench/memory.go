package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	procclient "github.com/tandem-serving/tandem/epp/extproc/client"
)

// tableMemory is the heading of the series that buffer requests.
const tableMemory = "Memory: peak RSS of a process that buffers requests, MiB. Baseline: a bare reverse proxy."

// bufferSeries is a number of requests that a program buffers at the same time.
type bufferSeries struct {
	requests, size int
}

func (s bufferSeries) String() string { return fmt.Sprintf("%d × %s", s.requests, sized(s.size)) }

// bytes returns the size of all buffered bodies.
func (s bufferSeries) bytes() int64 { return int64(s.requests) * int64(s.size) }

func sidecarHeld() []bufferSeries { return []bufferSeries{{1000, 32 * kB}, {64, 4 * mB}} }

// resting is the memory that an idle sidecar may take, in bytes.
const resting = 60 << 20

// measureBuffered makes a sidecar buffer requests while their prefill runs.
func measureBuffered(ctx context.Context, l *lab, series bufferSeries) (Row, error) {
	legs, err := newLegs(ctx, l, nixl(), series.size, false)
	if err != nil {
		return Row{}, err
	}
	baseline, err := l.baseline(ctx, baselineProxy, legs.prefill.addr())
	if err != nil {
		return Row{}, err
	}
	sidecar, err := l.sidecar(ctx, legs.decode)
	if err != nil {
		return Row{}, err
	}
	plain := shape{size: series.size}
	remote := plain
	remote.prefill = legs.prefill.addr()
	var peaks [2]float64
	for i, held := range []struct {
		by      *subject
		request []byte
	}{{baseline, plain.request()}, {sidecar, remote.request()}} {
		if peaks[i], err = legs.peak(ctx, held.by, series.requests, held.request); err != nil {
			return Row{}, err
		}
	}
	row := absolute(tableMemory, "sidecar, P/D, "+series.String(), peaks[1:], mebibytes(series.bytes()*5/4+resting))
	row.Baseline = &Figure{Value: peaks[0]}
	return row, nil
}

// peak returns the peak resident size, in MiB, of a process that buffers requests.
func (s *legs) peak(ctx context.Context, holder *subject, requests int, request []byte) (float64, error) {
	lanes, err := lanesTo(ctx, holder.addr, requests, request)
	defer func() { closeAll(lanes) }()
	if err != nil {
		return 0, err
	}
	if err := s.holdAll(ctx, lanes); err != nil {
		return 0, holder.died(err)
	}
	_, peak, err := memory(holder.PID())
	return mebibytes(peak), err
}

// holdAll lets the request of every lane wait in the prefill engine until all are there, and then lets them go on.
func (s *legs) holdAll(ctx context.Context, lanes []exchanger) error {
	open := s.prefill.hold.close()
	defer open()
	target := s.prefill.accepted.Load() + int64(len(lanes))
	errs := make(chan error, len(lanes))
	var exchanges sync.WaitGroup
	defer exchanges.Wait()
	for _, lane := range lanes {
		exchanges.Go(func() { errs <- lane.exchange(ctx) })
	}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for s.prefill.accepted.Load() < target {
		select {
		case err := <-errs:
			closeAll(lanes)
			return errors.Join(errors.New("a request ended before its prefill"), err)
		case <-ctx.Done():
			closeAll(lanes)
			return context.Cause(ctx)
		case <-look.C:
		}
	}
	open()
	for range lanes {
		if err := <-errs; err != nil {
			closeAll(lanes)
			return err
		}
	}
	return nil
}

// measurePickerBuffered opens streams and sends everything but the end of their requests, and measures the picker's memory while
// it buffers them. At the end the picker returns all bodies, which shows that it did buffer them.
func measurePickerBuffered(ctx context.Context, l *lab, series bufferSeries) (Row, error) {
	f, err := newFleet(l, fleetSize)
	if err != nil {
		return Row{}, err
	}
	f.flags = []string{"--body-timeout=10m"} // on a slow machine the default timeout would end the requests
	picker, err := f.picker(ctx)
	if err != nil {
		return Row{}, err
	}
	conn, err := procclient.Dial(procclient.Options{Addresses: []string{picker.addr}, Plaintext: true})
	if err != nil {
		return Row{}, err
	}
	defer conn.Close()
	lane := newAsker(conn, pickerSeries{size: series.size}, 0)
	var streams []*procclient.Stream
	for range series.requests {
		stream, err := conn.Open(ctx, procclient.Single())
		if err != nil {
			return Row{}, picker.died(err)
		}
		streams = append(streams, stream)
		defer stream.Close()
		if err := lane.send(stream, false); err != nil {
			return Row{}, picker.died(err)
		}
	}
	if err := settled(ctx, picker.PID()); err != nil {
		return Row{}, err
	}
	_, peak, err := memory(picker.PID())
	if err != nil {
		return Row{}, err
	}
	for _, stream := range streams {
		if err := stream.RequestBody(nil, true); err != nil {
			return Row{}, picker.died(err)
		}
		if _, err := receive(stream); err != nil {
			return Row{}, picker.died(err)
		}
	}
	return absolute(tableMemory, "picker, "+series.String(), []float64{mebibytes(peak)}, mebibytes(4*series.bytes())), nil
}

// settled waits until a process's memory has not grown for half a second: then it has read everything that was sent.
func settled(ctx context.Context, pid int) error {
	var last int64
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for quiet := 0; quiet < 5; quiet++ {
		_, peak, err := memory(pid)
		if err != nil {
			return err
		}
		if peak > last {
			last, quiet = peak, 0
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
