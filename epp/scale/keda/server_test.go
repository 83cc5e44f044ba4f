package keda

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/tandem-serving/tandem/epp/scale"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// contract is KEDA's externalscaler.proto as a descriptor, so that the client of these tests reads and writes messages with protobuf's own
// library.
const contract = `
name: "externalscaler.proto" package: "externalscaler" syntax: "proto3"
message_type {name: "ScaledObjectRef"
  field {name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL}
  field {name: "namespace" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL}
  field {name: "scalerMetadata" number: 3 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".externalscaler.ScaledObjectRef.ScalerMetadataEntry"}
  nested_type {name: "ScalerMetadataEntry" options {map_entry: true}
    field {name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL}
    field {name: "value" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL}}}
message_type {name: "IsActiveResponse" field {name: "result" number: 1 type: TYPE_BOOL label: LABEL_OPTIONAL}}
message_type {name: "GetMetricSpecResponse" field {name: "metricSpecs" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".externalscaler.MetricSpec"}}
message_type {name: "MetricSpec"
  field {name: "metricName" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL}
  field {name: "targetSize" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL}
  field {name: "targetSizeFloat" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL}}
message_type {name: "GetMetricsRequest"
  field {name: "scaledObjectRef" number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL type_name: ".externalscaler.ScaledObjectRef"}
  field {name: "metricName" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL}}
message_type {name: "GetMetricsResponse" field {name: "metricValues" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED type_name: ".externalscaler.MetricValue"}}
message_type {name: "MetricValue"
  field {name: "metricName" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL}
  field {name: "metricValue" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL}
  field {name: "metricValueFloat" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL}}`

// fakeSource has the sizes that a test chooses.
type fakeSource struct {
	mu      sync.Mutex
	sizes   []scale.Size
	err     error
	changed chan struct{}
}

func (f *fakeSource) Sizes() ([]scale.Size, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sizes, f.err
}

func (f *fakeSource) Changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fakeSource) set(err error, sizes ...scale.Size) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sizes, f.err = sizes, err
	if f.changed != nil {
		close(f.changed)
	}
	f.changed = make(chan struct{})
}

func sized(decode, prefill int) []scale.Size {
	return []scale.Size{{Role: "decode", Variant: "llama-d", Desired: decode}, {Role: "prefill", Variant: "llama-p", Desired: prefill}}
}

// client asks as KEDA does.
type client struct {
	*grpc.ClientConn
	file protoreflect.FileDescriptor
}

// start serves sizes until the test ends.
func start(t *testing.T, source scale.Source) *client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(source, nil)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(); server.Stop(); serving.Wait() })
	return &client{conn, contractFile(t)}
}

// contractFile returns the contract, read.
func contractFile(t testing.TB) protoreflect.FileDescriptor {
	t.Helper()
	var description descriptorpb.FileDescriptorProto
	if err := prototext.Unmarshal([]byte(contract), &description); err != nil {
		t.Fatal(err)
	}
	file, err := protodesc.NewFile(&description, nil)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// message returns a message of the contract with a text's content.
func (c *client) message(t testing.TB, name, text string) *dynamicpb.Message {
	t.Helper()
	m := dynamicpb.NewMessage(c.file.Messages().ByName(protoreflect.Name(name)))
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// ask calls a method, and returns whether the answer is the wanted one, or the status.
func (c *client) ask(t *testing.T, method, asks, text, answers, want string) codes.Code {
	t.Helper()
	got := c.message(t, answers, "")
	if err := c.Invoke(t.Context(), "/"+Service+"/"+method, c.message(t, asks, text), got); err != nil {
		return status.Code(err)
	}
	if wanted := c.message(t, answers, want); !proto.Equal(got, wanted) {
		t.Errorf("%s of %s answers %v, want %v", method, text, got, wanted)
	}
	return codes.OK
}

func trigger(metadata string) string {
	return `name: "llama" namespace: "models" scalerMetadata {key: "scalerAddress" value: "epp:9006"} ` + metadata
}

const (
	ofDecode  = `scalerMetadata {key: "role" value: "decode"}`
	ofPrefill = `scalerMetadata {key: "variant" value: "llama-p"}`
)

func TestKEDAAsks(t *testing.T) {
	source := &fakeSource{}
	c := start(t, source)
	for _, test := range []struct {
		name     string
		err      error
		sizes    []scale.Size
		metadata string
		active   string
		metric   string
		value    string
		code     codes.Code // of IsActive and GetMetrics
		specCode codes.Code
	}{
		{name: "by role", sizes: sized(7, 0), metadata: ofDecode, active: "result: true", metric: "desired-replicas-decode", value: "metricValue: 7 metricValueFloat: 7"},
		{name: "by variant, none wanted", sizes: sized(7, 0), metadata: ofPrefill, metric: "desired-replicas-llama-p"},
		{name: "by both", sizes: sized(7, 2), metadata: ofPrefill + `scalerMetadata {key: "role" value: "prefill"}`, active: "result: true", metric: "desired-replicas-prefill",
			value: "metricValue: 2 metricValueFloat: 2"},
		{name: "neither", sizes: sized(1, 1), code: codes.InvalidArgument, specCode: codes.InvalidArgument},
		{name: "a role without size", sizes: sized(1, 1)[:1], metadata: ofPrefill, code: codes.NotFound, specCode: codes.NotFound},
		{name: "not the variant's role", sizes: sized(1, 1), metadata: ofPrefill + ofDecode, code: codes.NotFound, specCode: codes.NotFound},
		{name: "not known yet", err: errors.New("just started"), metadata: ofDecode, metric: "desired-replicas-decode", code: codes.Unavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			source.set(test.err, test.sizes...)
			object := trigger(test.metadata)
			if code := c.ask(t, "IsActive", "ScaledObjectRef", object, "IsActiveResponse", test.active); code != test.code {
				t.Errorf("IsActive: %v, want %v", code, test.code)
			}
			spec := `metricSpecs {metricName: "` + test.metric + `" targetSize: 1 targetSizeFloat: 1}`
			if code := c.ask(t, "GetMetricSpec", "ScaledObjectRef", object, "GetMetricSpecResponse", spec); code != test.specCode {
				t.Errorf("GetMetricSpec: %v, want %v", code, test.specCode)
			}
			asked := `metricName: "` + test.metric + `" scaledObjectRef {` + object + `}`
			value := `metricValues {metricName: "` + test.metric + `" ` + test.value + `}`
			if code := c.ask(t, "GetMetrics", "GetMetricsRequest", asked, "GetMetricsResponse", value); code != test.code {
				t.Errorf("GetMetrics: %v, want %v", code, test.code)
			}
		})
	}
}

// TestKEDAIsTold: a stream tells whether any replica is wanted, first and on every change, and nothing else.
func TestKEDAIsTold(t *testing.T) {
	source := &fakeSource{}
	source.set(errors.New("just started"))
	c := start(t, source)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+Service+"/StreamIsActive")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(c.message(t, "ScaledObjectRef", trigger(ofDecode))); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	told := func(want string) {
		t.Helper()
		got := c.message(t, "IsActiveResponse", "")
		if err := stream.RecvMsg(got); err != nil {
			t.Fatal(err)
		}
		if wanted := c.message(t, "IsActiveResponse", want); !proto.Equal(got, wanted) {
			t.Errorf("the stream tells %v, want %v", got, wanted)
		}
	}
	source.set(nil, sized(0, 3)...)
	told("")
	source.set(nil, sized(0, 4)...)
	source.set(nil, sized(1, 3)...)
	told("result: true")
	source.set(nil, sized(5, 3)...)
	source.set(errors.New("the configuration is read again"))
	source.set(nil, sized(0, 0)...)
	told("")
	source.set(nil, sized(0, 0)[1:]...) // the configuration sizes decode no more
	if err := stream.RecvMsg(c.message(t, "IsActiveResponse", "")); status.Code(err) != codes.NotFound {
		t.Errorf("the stream of a size that is gone ends with %v", err)
	}
}

func TestStreamMetricSpecIsNotServed(t *testing.T) {
	source := &fakeSource{}
	source.set(nil, sized(1, 1)...)
	c := start(t, source)
	if code := c.ask(t, "StreamMetricSpec", "ScaledObjectRef", trigger(ofDecode), "GetMetricSpecResponse", ""); code != codes.Unimplemented {
		t.Errorf("%v, want what KEDA takes for a scaler without it", code)
	}
}

// FuzzRead: no message makes the server fail, and it reads what protobuf's own library reads.
func FuzzRead(f *testing.F) {
	c := &client{file: contractFile(f)}
	known, err := proto.Marshal(c.message(f, "GetMetricsRequest", `scaledObjectRef {name: "a" namespace: "b" scalerMetadata {key: "role" value: "decode"}} metricName: "m"`))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(known)
	f.Add(append(append([]byte{}, known...), known...))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, from []byte) {
		var q question
		failed, want := q.read(from), c.message(t, "GetMetricsRequest", "")
		if proto.Unmarshal(from, want) != nil || failed != nil {
			return // it also refuses texts that are not UTF-8, and the server too much metadata
		}
		got := c.message(t, "GetMetricsRequest", "")
		of := got.Descriptor().Fields().ByName("scaledObjectRef")
		if want.Has(of) {
			ref := got.Mutable(of).Message()
			ref.Set(of.Message().Fields().ByName("name"), protoreflect.ValueOfString(q.of.name))
			ref.Set(of.Message().Fields().ByName("namespace"), protoreflect.ValueOfString(q.of.namespace))
			entries := ref.Mutable(of.Message().Fields().ByName("scalerMetadata")).Map()
			for key, one := range q.of.metadata {
				entries.Set(protoreflect.ValueOfString(key).MapKey(), protoreflect.ValueOfString(one))
			}
		}
		got.Set(got.Descriptor().Fields().ByName("metricName"), protoreflect.ValueOfString(q.metric))
		if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(from, want) != nil || !proto.Equal(got, want) {
			t.Errorf("read %+v, want %v", q, want)
		}
	})
}
