package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/quorate/quorate/quotaerr"
)

// transportMessageBytes is what the library takes in. It is above maxMessageBytes so that a message
// somewhat too large is refused here, with a reason; the library's own refusal has none.
const transportMessageBytes = 2 * maxMessageBytes

// envelope is what a strict method decodes into: a message that cannot be decoded leaves an error in
// it. Were the error returned, the library would answer INTERNAL at once, as if the server were at
// fault, and without asking the interceptors.
type envelope struct {
	message   any
	malformed error
}

// strictCodec decodes into envelopes as well as into messages.
type strictCodec struct{ encoding.CodecV2 }

func newStrictCodec() strictCodec { return strictCodec{encoding.GetCodecV2(proto.Name)} }

// Marshal encodes v, unless it is encoded already.
func (c strictCodec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case encoded:
		return mem.BufferSlice{mem.SliceBuffer(m)}, nil
	case passing:
		return mem.BufferSlice{m.buffer()}, nil
	default:
		return c.CodecV2.Marshal(v)
	}
}

// Unmarshal decodes data into v. For an envelope it never fails.
func (c strictCodec) Unmarshal(data mem.BufferSlice, v any) error {
	e, ok := v.(*envelope)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if n, most := data.Len(), mostBytes(e.message); n > most {
		e.malformed = quotaerr.New(quotaerr.InvalidArgument,
			"the request has %d bytes: send at most %d", n, most)
		return nil
	}
	if err := c.decode(data, e.message); err != nil {
		e.malformed = quotaerr.Wrap(quotaerr.InvalidArgument, err,
			"the request is not a message of this method, or has a string that is not UTF-8")
	}
	return nil
}

func (c strictCodec) decode(data mem.BufferSlice, message any) error {
	if f, ok := message.(*checkFrame); ok {
		return f.decode(data)
	}
	return c.CodecV2.Unmarshal(data, message)
}

// mostBytes bounds a message that comes in.
func mostBytes(message any) int {
	if _, ok := message.(*checkFrame); ok {
		return MaxFrameBytes
	}
	return maxMessageBytes
}

// strictly returns a copy of sd whose unary methods answer invalid_argument to a request that cannot
// be decoded. It needs a server with the strict codec.
func strictly(sd grpc.ServiceDesc) *grpc.ServiceDesc {
	methods := make([]grpc.MethodDesc, len(sd.Methods))
	for i, m := range sd.Methods {
		methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: strictHandler(m.Handler)}
	}
	sd.Methods = methods
	return &sd
}

func strictHandler(h grpc.MethodHandler) grpc.MethodHandler {
	return func(
		srv any, ctx context.Context, dec func(any) error, chain grpc.UnaryServerInterceptor,
	) (any, error) {
		var malformed error
		decode := func(v any) error {
			e := &envelope{message: v}
			if err := dec(e); err != nil {
				return err // the call was given up, or its message is beyond what the library takes in
			}
			malformed = e.malformed
			return nil
		}
		refuse := func(
			ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
		) (any, error) {
			if malformed != nil {
				next = func(context.Context, any) (any, error) { return nil, malformed }
			}
			return chain(ctx, req, info, next)
		}
		return h(srv, ctx, decode, refuse)
	}
}
