package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	procclient "github.com/tandem-serving/tandem/epp/extproc/client"
)

// growth measures how costs grow: each curve at its points, in labs of their own.
type growth struct {
	open    func() (*lab, error)
	options options
	points  growthPoints
}

// growthPoints are the numbers at which curves are measured.
type growthPoints struct {
	endpoints []int // endpoints that a picker chooses from
	scraped   []int // endpoints whose pages a picker reads
	streams   []int // open streams
}

func defaultGrowth() growthPoints {
	return growthPoints{endpoints: []int{10, 100, 1000, 10000}, scraped: []int{64, 128, 256, 512, 1024},
		streams: []int{0, 100, 1000, 2500, 5000, 10000}}
}

// picksByEndpoints returns two curves: the CPU time of one decision, and its duration. Pages are hardly read here: another
// curve shows their cost.
func (g *growth) picksByEndpoints(ctx context.Context) ([]Curve, error) {
	var cpu, thought []Point
	for _, n := range g.points.endpoints {
		err := within(g.open, func(l *lab) error {
			f, err := newFleet(l, n)
			if err != nil {
				return err
			}
			f.flags = []string{"--refresh-metrics-interval=10m"}
			a, err := newAsked(ctx, f, pickerSeries{size: kB, endpoints: n}, inFlight)
			defer func() { a.close() }()
			if err != nil {
				return err
			}
			ours := a.contenders[1:]
			costs, err := compare(ctx, ours, g.options)
			if err != nil {
				return err
			}
			for _, lane := range ours[0].lanes {
				lane.(*asker).said = nil
			}
			if _, err := closed(ctx, ours[0].lanes[:1], g.options.span); err != nil { // with one lane no request waits
				return ours[0].died(err)
			}
			cpu = append(cpu, Point{float64(n), ours[0].figure(costs[0]).Value})
			thought = append(thought, Point{float64(n), 1e3 * median(ours[0].lanes[0].(*asker).said)})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return []Curve{newCurve("picker, CPU time per request, one filter, 1 kB", "endpoints", "ms", cpu),
		newCurve("picker, time from the last byte to the decision, 1 kB", "endpoints", "µs", thought)}, nil
}

// scrapingByEndpoints returns the cost of a picker without requests.
func (g *growth) scrapingByEndpoints(ctx context.Context) ([]Curve, error) {
	var points []Point
	for _, n := range g.points.scraped {
		err := within(g.open, func(l *lab) error {
			row, err := measureIdle(ctx, l, n, 1, g.options)
			if err == nil {
				points = append(points, Point{float64(n), row.Ours.Value})
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return []Curve{newCurve(fmt.Sprintf("picker, idle, %s pages", sized(pageSize)), "endpoints", "cores", points)}, nil
}

// pickerByStreams returns the memory of a picker that follows open answers.
func (g *growth) pickerByStreams(ctx context.Context) (curves []Curve, err error) {
	err = within(g.open, func(l *lab) error {
		f, err := newFleet(l, fleetSize)
		if err != nil {
			return err
		}
		picker, err := f.picker(ctx)
		if err != nil {
			return err
		}
		conn, err := procclient.Dial(procclient.Options{Addresses: []string{picker.addr}, Plaintext: true})
		if err != nil {
			return err
		}
		defer conn.Close()
		lane, open := newAsker(conn, pickerSeries{size: kB}, 0), 0
		points, err := g.grown(ctx, picker, func(n int) error {
			for ; open < n; open++ {
				stream, err := conn.Open(ctx, procclient.Single()) // the stream ends with the connection
				if err != nil {
					return err
				}
				if err := lane.send(stream, true); err != nil {
					return err
				}
				if _, err := receive(stream); err != nil {
					return err
				}
			}
			return nil
		})
		curves = append(curves, newCurve("picker, memory by open streams, one filter", "open streams", "MiB resident", points))
		return err
	})
	return curves, err
}

// sidecarByStreams returns the memory of a sidecar that relays streamed answers. Clients use HTTP/2, many streams on one
// connection, because there are not enough ports for both sides of 10,000 connections.
func (g *growth) sidecarByStreams(ctx context.Context) (curves []Curve, err error) {
	err = within(g.open, func(l *lab) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		engine, err := l.engine(ctx, smallBuffer, begun(ctx))
		if err != nil {
			return err
		}
		sidecar, err := l.sidecar(ctx, engine)
		if err != nil {
			return err
		}
		clients := &streaming{url: "http://" + sidecar.addr + "/v1/completions"}
		defer clients.close()
		points, err := g.grown(ctx, sidecar, func(n int) error { return clients.growTo(ctx, n) })
		curves = append(curves, newCurve("sidecar, memory by open streams", "open streams", "MiB resident", points))
		return err
	})
	return curves, err
}

// grown opens more and more streams, and measures the memory of a program at each point, when it has settled.
func (g *growth) grown(ctx context.Context, s *subject, openTo func(n int) error) (points []Point, err error) {
	for _, n := range g.points.streams {
		if err := openTo(n); err != nil {
			return nil, s.died(fmt.Errorf("opening %d streams: %w", n, err))
		}
		if err := settled(ctx, s.PID()); err != nil {
			return nil, err
		}
		now, _, err := memory(s.PID())
		if err != nil {
			return nil, err
		}
		points = append(points, Point{float64(n), mebibytes(now)})
	}
	return points, nil
}

// begun returns an answer that sends a first event and then waits for the end.
func begun(ctx context.Context) answer {
	return func(w *bufio.Writer) error {
		_, _ = w.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		_, _ = w.Write(chunk("data: {\"id\":\"cmpl-bench\",\"choices\":[{\"index\":0,\"text\":\" fox\"}]}\n\n"))
		if err := w.Flush(); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// streaming is a set of clients that wait for the rest of their answers.
type streaming struct {
	url     string
	clients []*http.Client
	open    []io.Closer
}

// streamsPerConn is how many streams share a connection; servers allow 250 by default.
const streamsPerConn = 100

func (s *streaming) growTo(ctx context.Context, n int) error {
	body := shape{size: kB}.body()
	for len(s.open) < n {
		if len(s.open)%streamsPerConn == 0 {
			t := &http.Transport{Protocols: new(http.Protocols)}
			t.Protocols.SetUnencryptedHTTP2(true)
			s.clients = append(s.clients, &http.Client{Transport: t})
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(body))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		answer, err := s.clients[len(s.clients)-1].Do(request)
		if err != nil {
			return err
		}
		s.open = append(s.open, answer.Body)
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
	}
	return nil
}

func (s *streaming) close() {
	var closing sync.WaitGroup
	for chunk := range slices.Chunk(s.open, streamsPerConn) {
		closing.Go(func() {
			for _, body := range chunk {
				_ = body.Close()
			}
		})
	}
	closing.Wait()
	for _, c := range s.clients {
		c.CloseIdleConnections()
	}
}
