package keda

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// message is one of the messages of externalscaler.proto. Their field numbers are given where they are read and written.
type message interface {
	read(from []byte) error
	append(to []byte) []byte
}

// ref is ScaledObjectRef: the object that is scaled (1 name, 2 namespace), and the metadata of its trigger (3).
type ref struct {
	name, namespace string
	metadata        map[string]string
}

// active is IsActiveResponse: whether any replica is wanted (1).
type active struct{ result bool }

// spec is GetMetricSpecResponse with one MetricSpec (1): a metric (1), and its value for each replica as an integer (2) and as a double (3).
type spec struct {
	metric string
	target float64
}

// question is GetMetricsRequest: the object (1) and the metric (2).
type question struct {
	of     ref
	metric string
}

// value is GetMetricsResponse with one MetricValue (1): a metric (1), and its value as an integer (2) and as a double (3).
type value struct {
	metric string
	value  float64
}

// codec reads and writes messages. KEDA's client calls it proto.
type codec struct{}

// Name implements encoding.CodecV2.
func (codec) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(message)
	if !ok {
		return nil, fmt.Errorf("writing a message: %T is none of KEDA's", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.append(nil))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(message)
	if !ok {
		return fmt.Errorf("reading a message: %T is none of KEDA's", v)
	}
	return m.read(data.Materialize())
}

// fields calls take with each field of a message. Fields of other types than the ones that are asked for are passed over, as newer versions of
// the messages may have them.
func fields(from []byte, take func(number protowire.Number, text []byte, n uint64) error) error {
	for len(from) > 0 {
		number, kind, n := protowire.ConsumeTag(from)
		if n < 0 {
			return broken(n)
		}
		from = from[n:]
		var text []byte
		var bits uint64
		switch kind {
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(from)
		case protowire.VarintType:
			bits, n = protowire.ConsumeVarint(from)
		case protowire.Fixed64Type:
			bits, n = protowire.ConsumeFixed64(from)
		default:
			number, n = 0, protowire.ConsumeFieldValue(number, kind, from)
		}
		if n < 0 {
			return broken(n)
		}
		from = from[n:]
		if err := take(number, text, bits); err != nil {
			return err
		}
	}
	return nil
}

func broken(n int) error { return fmt.Errorf("reading a message of KEDA: %w", protowire.ParseError(n)) }

// maxMetadata bounds the entries of a trigger's metadata.
const maxMetadata = 1000

func (r *ref) read(from []byte) error {
	*r = ref{metadata: map[string]string{}}
	return fields(from, func(number protowire.Number, text []byte, _ uint64) error {
		switch number {
		case 1:
			r.name = string(text)
		case 2:
			r.namespace = string(text)
		case 3:
			var key, one string
			err := fields(text, func(number protowire.Number, text []byte, _ uint64) error {
				switch number {
				case 1:
					key = string(text)
				case 2:
					one = string(text)
				}
				return nil
			})
			if r.metadata[key] = one; len(r.metadata) > maxMetadata {
				return errors.New("reading a message of KEDA: too much metadata")
			}
			return err
		}
		return nil
	})
}

func (r *ref) append(to []byte) []byte {
	to = text(text(to, 1, r.name), 2, r.namespace)
	for key, one := range r.metadata {
		to = part(to, 3, text(text(nil, 1, key), 2, one))
	}
	return to
}

func (a *active) read(from []byte) error {
	return fields(from, func(number protowire.Number, _ []byte, n uint64) error {
		if number == 1 {
			a.result = n != 0
		}
		return nil
	})
}

func (a *active) append(to []byte) []byte {
	if a.result {
		to = protowire.AppendVarint(protowire.AppendTag(to, 1, protowire.VarintType), 1)
	}
	return to
}

func (q *question) read(from []byte) error {
	return fields(from, func(number protowire.Number, text []byte, _ uint64) error {
		switch number {
		case 1:
			return q.of.read(text)
		case 2:
			q.metric = string(text)
		}
		return nil
	})
}

func (q *question) append(to []byte) []byte { return text(part(to, 1, q.of.append(nil)), 2, q.metric) }

func (s *spec) read(from []byte) (err error) {
	s.metric, s.target, err = readMetric(from)
	return err
}

func (s *spec) append(to []byte) []byte { return metric(to, s.metric, s.target) }

func (v *value) read(from []byte) (err error) {
	v.metric, v.value, err = readMetric(from)
	return err
}

func (v *value) append(to []byte) []byte { return metric(to, v.metric, v.value) }

// metric appends a MetricSpec or a MetricValue, which are alike. Older versions of KEDA read the integer.
func metric(to []byte, name string, n float64) []byte {
	one := text(nil, 1, name)
	one = protowire.AppendVarint(protowire.AppendTag(one, 2, protowire.VarintType), uint64(int64(math.Ceil(n))))
	one = protowire.AppendFixed64(protowire.AppendTag(one, 3, protowire.Fixed64Type), math.Float64bits(n))
	return part(to, 1, one)
}

func readMetric(from []byte) (name string, n float64, err error) {
	err = fields(from, func(number protowire.Number, one []byte, _ uint64) error {
		if number != 1 {
			return nil
		}
		return fields(one, func(number protowire.Number, text []byte, bits uint64) error {
			switch number {
			case 1:
				name = string(text)
			case 3:
				n = math.Float64frombits(bits)
			}
			return nil
		})
	})
	return name, n, err
}

// text appends a string, which is left out if it is empty.
func text(to []byte, number protowire.Number, s string) []byte {
	if s == "" {
		return to
	}
	return protowire.AppendString(protowire.AppendTag(to, number, protowire.BytesType), s)
}

// part appends a message within another one.
func part(to []byte, number protowire.Number, one []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), one)
}
