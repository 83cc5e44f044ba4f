package autoscale

import (
	"math"
	"time"
)

// Behavior is how fast a HorizontalPodAutoscaler follows its metric. See Defaults.
type Behavior struct {
	Tolerance float64 // within this share of the target the size stays (--horizontal-pod-autoscaler-tolerance)
	Up, Down  Rules
}

// Rules are the scaling rules of one direction.
type Rules struct {
	// Window is how long a size must have been wanted: up, the least of the window counts, down, the most.
	Window time.Duration
	// Percent and Pods bound the change within Period: what lets it change more counts (selectPolicy: Max). 0: the policy is not there;
	// without both the change has no bound.
	Percent float64
	Pods    int
	Period  time.Duration
}

// Defaults returns the behavior of an autoscaling/v2 HorizontalPodAutoscaler that says nothing of it: up by 100 % or 4 pods in 15 s at
// once, down to any size after 300 s.
func Defaults() Behavior {
	return Behavior{
		Tolerance: 0.1,
		Up:        Rules{Percent: 100, Pods: 4, Period: 15 * time.Second},
		Down:      Rules{Window: 5 * time.Minute, Percent: 100, Period: 15 * time.Second},
	}
}

// Metric is what a HorizontalPodAutoscaler goes by, at a moment.
type Metric struct {
	Target float64 // average for each pod
	Sum    float64 // over the pods that are ready, or of an external metric
	Ready  int     // pods that are ready
	// External says that the metric is not one of pods: the size is Sum/Target. Of a metric of pods, those that are not ready yet are
	// taken to have none when more are wanted.
	External bool
}

// HPA is one HorizontalPodAutoscaler. It follows the controller of Kubernetes 1.36.
type HPA struct {
	behavior Behavior
	wanted   []moment // before stabilization, within the longer window
	changes  []moment // of the size, within the longer period
}

// moment is a number of pods at a time.
type moment struct {
	at   time.Duration
	pods int
}

// NewHPA returns an autoscaler that has decided nothing yet.
func NewHPA(b Behavior) *HPA { return &HPA{behavior: b} }

// Size returns the wanted number of pods, where so many are now.
func (h *HPA) Size(now time.Duration, current int, m Metric) int {
	wanted := m.replicas(current, h.behavior.Tolerance)
	size := h.limited(now, current, h.stabilized(now, current, wanted))
	if size != current {
		h.changes = append(since(h.changes, now-max(h.behavior.Up.Period, h.behavior.Down.Period)), moment{now, size - current})
	}
	return size
}

// replicas returns how many pods the metric asks for.
func (m *Metric) replicas(current int, tolerance float64) int {
	if current == 0 {
		return 0 // scaling is off
	}
	if m.External {
		if math.Abs(1-m.Sum/(m.Target*float64(current))) <= tolerance {
			return current
		}
		return up(m.Sum / m.Target)
	}
	if m.Ready == 0 {
		return current // there is no metric
	}
	ratio := m.Sum / float64(m.Ready) / m.Target
	if ratio <= 1 || m.Ready == current {
		if math.Abs(1-ratio) <= tolerance {
			return current
		}
		return up(ratio * float64(m.Ready))
	}
	// Those that start count as pods without load: more are wanted only if they are not enough either.
	ratio = m.Sum / float64(current) / m.Target
	if math.Abs(1-ratio) <= tolerance || ratio < 1 {
		return current
	}
	return max(current, up(ratio*float64(current)))
}

// up rounds up, but for the error of floating point.
func up(v float64) int { return int(math.Ceil(v - 1e-9)) }

// stabilized returns a size of the windows of both directions: the size moves up as far as all of the window wanted it, and down likewise.
func (h *HPA) stabilized(now time.Duration, current, wanted int) int {
	rules := &h.behavior
	h.wanted = append(since(h.wanted, now-max(rules.Up.Window, rules.Down.Window)), moment{now, wanted})
	least, most := wanted, wanted
	for _, w := range h.wanted {
		if w.at > now-rules.Up.Window {
			least = min(least, w.pods)
		}
		if w.at > now-rules.Down.Window {
			most = max(most, w.pods)
		}
	}
	return min(max(current, least), most)
}

// since returns the moments after a time.
func since(all []moment, after time.Duration) []moment {
	kept := all[:0]
	for _, m := range all {
		if m.at > after {
			kept = append(kept, m)
		}
	}
	return kept
}

// limited bounds a change by the rules of its direction.
func (h *HPA) limited(now time.Duration, current, wanted int) int {
	switch {
	case wanted > current:
		return min(wanted, max(current, h.behavior.Up.bound(h.changes, now, current, 1)))
	case wanted < current:
		return max(wanted, min(current, h.behavior.Down.bound(h.changes, now, current, -1)))
	}
	return current
}

// bound returns the furthest size within the period that ends now. sign is that of the direction.
func (r *Rules) bound(changes []moment, now time.Duration, current, sign int) int {
	if r.Percent == 0 && r.Pods == 0 {
		return sign * math.MaxInt32
	}
	begun := current // of the period, without the changes in this direction
	for _, c := range changes {
		if c.at > now-r.Period && c.pods*sign > 0 {
			begun -= c.pods
		}
	}
	furthest := 0
	if r.Percent > 0 {
		furthest = up(float64(begun) * r.Percent / 100)
		if sign < 0 {
			furthest = begun - int(float64(begun)*(1-r.Percent/100))
		}
	}
	return begun + sign*max(furthest, r.Pods)
}
