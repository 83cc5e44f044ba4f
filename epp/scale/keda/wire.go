package keda

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Messages of externalscaler.proto: requests are read, and answers are written. Field numbers are given where the messages are described.
type (
	request interface{ read(from []byte) error }
	answer  interface{ append(to []byte) []byte }
)

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
	m, ok := v.(answer)
	if !ok {
		return nil, fmt.Errorf("writing a message: %T is no answer to KEDA", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(m.append(nil))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(request)
	if !ok {
		return fmt.Errorf("reading a message: %T is no request of KEDA", v)
	}
	return m.read(data.Materialize())
}

// fields calls take with each text or message in a message. Requests have no other fields; those that newer versions may have are passed over.
func fields(from []byte, take func(number protowire.Number, text []byte) error) error {
	for len(from) > 0 {
		number, kind, n := protowire.ConsumeTag(from)
		if n < 0 {
			return broken(n)
		}
		from = from[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, from); n < 0 {
				return broken(n)
			}
			from = from[n:]
			continue
		}
		text, n := protowire.ConsumeBytes(from)
		if n < 0 {
			return broken(n)
		}
		from = from[n:]
		if err := take(number, text); err != nil {
			return err
		}
	}
	return nil
}

func broken(n int) error { return fmt.Errorf("reading a message of KEDA: %w", protowire.ParseError(n)) }

// maxMetadata bounds the entries of a trigger's metadata.
const maxMetadata = 1000

func (r *ref) read(from []byte) error {
	if r.metadata == nil {
		r.metadata = map[string]string{}
	}
	return fields(from, func(number protowire.Number, text []byte) error {
		switch number {
		case 1:
			r.name = string(text)
		case 2:
			r.namespace = string(text)
		case 3:
			var entry [2]string // key and value
			err := fields(text, func(number protowire.Number, text []byte) error {
				if number == 1 || number == 2 {
					entry[number-1] = string(text)
				}
				return nil
			})
			if r.metadata[entry[0]] = entry[1]; len(r.metadata) > maxMetadata {
				return errors.New("reading a message of KEDA: too much metadata")
			}
			return err
		}
		return nil
	})
}

func (q *question) read(from []byte) error {
	return fields(from, func(number protowire.Number, text []byte) error {
		switch number {
		case 1:
			return q.of.read(text)
		case 2:
			q.metric = string(text)
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

func (s *spec) append(to []byte) []byte { return metric(to, s.metric, s.target) }

func (v *value) append(to []byte) []byte { return metric(to, v.metric, v.value) }

// metric appends a MetricSpec or a MetricValue, which are alike, as the first field of an answer.
func metric(to []byte, name string, n float64) []byte {
	var one []byte
	if name != "" {
		one = protowire.AppendString(protowire.AppendTag(one, 1, protowire.BytesType), name)
	}
	one = protowire.AppendVarint(protowire.AppendTag(one, 2, protowire.VarintType), uint64(int64(math.Ceil(n))))
	one = protowire.AppendFixed64(protowire.AppendTag(one, 3, protowire.Fixed64Type), math.Float64bits(n))
	return protowire.AppendBytes(protowire.AppendTag(to, 1, protowire.BytesType), one)
}
