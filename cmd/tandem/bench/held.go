package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	procclient "github.com/tandem-serving/tandem/epp/extproc/client"
)

// tableMemory is the heading of the series that hold requests.
const tableMemory = "Memory: peak resident size, MiB, of a process that holds requests. Floor: a bare reverse proxy."

// heldSeries is requests that a program holds at the same time.
type heldSeries struct {
	requests, size int
}

func (s heldSeries) String() string { return fmt.Sprintf("%d × %s", s.requests, sized(s.size)) }

// bytes is what is held.
func (s heldSeries) bytes() int64 { return int64(s.requests) * int64(s.size) }

func sidecarHeld() []heldSeries { return []heldSeries{{1000, 32 * kB}, {64, 4 * mB}} }

// resting is what a sidecar may take that holds nothing, bytes.
const resting = 60 << 20

// measureHeld has a sidecar hold requests while their prefill runs.
func measureHeld(ctx context.Context, l *lab, series heldSeries) (Row, error) {
	legs, err := newLegs(ctx, l, series.size, false)
	if err != nil {
		return Row{}, err
	}
	floor, err := l.floor(ctx, floorProxy, legs.prefill.addr())
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
	}{{floor, plain.request()}, {sidecar, remote.request()}} {
		if peaks[i], err = legs.peak(ctx, held.by, series.requests, held.request); err != nil {
			return Row{}, err
		}
	}
	row := absolute(tableMemory, "sidecar, P/D, "+series.String(), peaks[1:], mebibytes(series.bytes()*5/4+resting))
	row.Floor = &Figure{Value: peaks[0]}
	return row, nil
}

// peak is the peak resident size of a process that held requests, MiB.
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

// holdAll has every lane's request wait in the prefill engine until all are there, and lets them go on.
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

// measurePickerHeld opens streams whose requests have come but for their end, and gives the picker's memory while it holds
// them. That it did hold them is seen in the end, when it gives all of them back.
func measurePickerHeld(ctx context.Context, l *lab, series heldSeries) (Row, error) {
	f, err := newFleet(l, fleetSize)
	if err != nil {
		return Row{}, err
	}
	f.flags = []string{"--body-timeout=10m"} // on a slow machine it would give up those that are held
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

// settled waits until a process's memory has not grown for half a second, which is when it has read all that was sent.
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
