package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/quotaerr"
)

// strictly returns a copy of sd whose unary methods answer invalid_argument to a request that cannot
// be decoded: garbage, invalid UTF-8, too large. The library would say INTERNAL, as if the server
// were at fault, and would skip the interceptors.
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
			err := dec(v)
			if err == nil {
				return nil
			}
			switch status.Code(err) {
			case codes.Internal, codes.ResourceExhausted, codes.Unknown:
				malformed = quotaerr.Wrap(quotaerr.InvalidArgument, err,
					"the request is not a message of this method, is larger than %d bytes, or has"+
						" a string that is not UTF-8", maxMessageBytes)
				return nil
			}
			return err // the call was given up by its caller
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
