package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tandem-serving/tandem/pd"
)

const (
	longStreams = 20
	// longAnswer is in tokens: five minutes of them, with engines that take some 135 ms for each.
	longAnswer = 2200
	// longDrain is drainSeconds: longer than the longest stream takes.
	longDrain = 360
	// freeWithin bounds the rollout. Streams that waited at their engines for their ends would take five minutes.
	freeWithin = 2 * time.Minute
)

// slowDecode are values of decode engines that take their time for tokens, but not for the first contact with a prefill engine. One of them
// can keep all streams.
const slowDecode = "decode.args={--time-scale=50,--handshake-time=100ms,--blocks=4096}"

// scenarioEvacuate: both decode pods are replaced under streams of five minutes. The streams leave within seconds: the old engines have ended
// before any stream has. Some leave twice, for the other old pod and then for a new one. All of them have the tokens of an undisturbed engine.
var scenarioEvacuate = scenario{name: "evacuate", limit: 12 * time.Minute, run: func(t *testing.T, r *run) {
	rel := r.release("moving", namespace, "sidecar.continuation.times=2", fmt.Sprintf("drainSeconds=%d", longDrain), "tracing.ratio=0", slowDecode)
	rel.install(t, r)
	before := r.holdings(t, rel)
	old := rel.readyPods(r.ctx, t, "decode")
	s := r.beginStreams(t, rel)
	r.await(t, "streams at both decode pods", time.Minute, func(ctx context.Context) (string, bool) {
		var running []int
		for _, pod := range old {
			h, err := r.holding(ctx, pod, true)
			if err != nil {
				return err.Error(), false
			}
			running = append(running, h.running)
		}
		return fmt.Sprint(running), len(running) == 2 && running[0] > 0 && running[1] > 0 && running[0]+running[1] == longStreams
	})

	began := time.Now()
	r.mustKubectl(t, "rollout", "restart", "deployment/"+rel.object("decode"), "-n", namespace)
	departed := r.awaitDeparture(t, rel, old)
	took := time.Since(began)
	if n := s.ended.Load(); n > 0 {
		t.Errorf("%d streams had ended before the old engines: these may have waited for them", n)
	}
	moved := 0
	for _, d := range departed {
		moved += d.moved
		r.saw("%d streams left a decode pod; its engine had ended %.1f s after the pod was told to", d.moved, d.free.Sub(d.told).Seconds())
	}
	if moved <= longStreams {
		t.Errorf("%d streams have moved %d times: none left for a pod that ended next", longStreams, moved)
	}
	r.saw("both decode pods replaced in %.0f s, while %d streams ran; %d of them moved twice", took.Seconds(), longStreams, moved-longStreams)
	s.mustBeRight(t)
	rel.awaitSettled(t, "decode", time.Minute) // sidecars end with their last streams
	r.saw("every stream ended whole, with the tokens of an undisturbed engine, the last one %.0f s after the rollout began", time.Since(began).Seconds())
	r.lookAt(t, rel, before)
	rel.uninstall(t, r)
}}

// departure is how an old pod has left.
type departure struct {
	told, free time.Time // when it was seen that it is to end, and that its engine has ended; zero: not yet
	moved      int       // how many streams its sidecar has moved
}

// awaitDeparture waits until the engines of old decode pods have ended and new pods serve.
func (r *run) awaitDeparture(t *testing.T, rel *release, old []corev1.Pod) map[types.UID]*departure {
	t.Helper()
	departed := map[types.UID]*departure{}
	for _, p := range old {
		departed[p.UID] = &departure{}
	}
	r.await(t, "the old engines have ended and new pods serve", freeWithin, func(ctx context.Context) (string, bool) {
		pods, free := rel.pods(ctx, t, "decode"), 0
		for _, p := range pods {
			d := departed[p.UID]
			if d == nil {
				continue
			}
			if err := r.lookAtDeparture(ctx, p, d); err != nil {
				return err.Error(), false
			}
			if !d.free.IsZero() {
				free++
			}
		}
		d, err := rel.c.admin.AppsV1().Deployments(rel.namespace).Get(ctx, rel.object("decode"), metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprintf("%d of %d old engines have ended; pods %s", free, len(old), podNames(pods)), free == len(old) && settled(d)
	})
	return departed
}

// lookAtDeparture notes how far an old pod is.
func (r *run) lookAtDeparture(ctx context.Context, p corev1.Pod, d *departure) error {
	if d.told.IsZero() && p.DeletionTimestamp != nil {
		d.told = time.Now()
	}
	if !d.free.IsZero() || statusOf(p, "engine").State.Terminated == nil {
		return nil
	}
	ended := time.Now()
	page, err := r.page(ctx, p.Namespace, p.Name, sidecarPort, "metrics")
	if err != nil {
		return err
	}
	d.free, d.moved = ended, int(sum(page, "tandem_continuations_total", `cause="left"`, `result="ok"`))
	if all := int(sum(page, "tandem_continuations_total")); all != d.moved {
		return fmt.Errorf("of %d streams %d have left %s and gone on", all, d.moved, p.Name)
	}
	return nil
}

// streams are long ones that run at the same time.
type streams struct {
	l     *load
	calls []call
	got   []reply
	errs  []error
	ended atomic.Int64
	all   sync.WaitGroup
}

// beginStreams has clients ask a release for long streams: completions and chats, short prompts and such as are prefilled elsewhere.
func (r *run) beginStreams(t *testing.T, to *release) *streams {
	t.Helper()
	s := &streams{l: &load{r: r, to: to, address: r.address(t, to)}, got: make([]reply, longStreams), errs: make([]error, longStreams)}
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	ctx, cancel := context.WithCancel(r.ctx)
	transport := r.transport()
	t.Cleanup(func() {
		cancel()
		s.all.Wait()
		transport.CloseIdleConnections()
	})
	for i := range longStreams {
		c := call{api: pd.APICompletions, stream: true, tokens: longAnswer}
		length := []int{threshold / 4, threshold + 40}[i%2]
		if i%4 >= 2 {
			c.api, c.text = pd.APIChat, drawText(random, length)
		} else {
			c.prompt = drawTokens(random, length)
		}
		s.calls = append(s.calls, c)
		s.all.Go(func() {
			defer s.ended.Add(1)
			s.got[i], s.errs[i] = c.over(ctx, transport, s.l.address, to.serves)
		})
	}
	return s
}

// mustBeRight waits for the ends of the streams, and fails the test if one is not what an undisturbed engine answers.
func (s *streams) mustBeRight(t *testing.T) {
	t.Helper()
	s.all.Wait()
	for i, c := range s.calls {
		how, detail := s.l.judge(s.l.r.ctx, c, s.got[i], s.errs[i])
		s.l.r.row.add(how)
		if how.right == 0 {
			t.Error(detail)
		}
	}
}
