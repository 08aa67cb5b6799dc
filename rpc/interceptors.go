package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/quotaerr"
)

// interceptors run in this order: metrics, logging, auth, recovery. Errors are typed inside and become
// statuses in the logging step, which therefore still sees the cause.
func interceptors(m *metrics, log *slog.Logger, g *guard) []grpc.ServerOption {
	recovered := recovery.WithRecoveryHandlerContext(
		func(ctx context.Context, p any) error { return caught(ctx, m, log, p) })
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(
			countCalls(m),
			logAndTranslate(log),
			auth.UnaryServerInterceptor(g.pass),
			recovery.UnaryServerInterceptor(recovered),
		),
		grpc.ChainStreamInterceptor(
			countStreams(m),
			translateStream(log),
			auth.StreamServerInterceptor(g.pass),
			recovery.StreamServerInterceptor(recovered),
		),
	}
}

// translateStream does for streams what logAndTranslate does for single calls. The library's own services
// give statuses already.
func translateStream(log *slog.Logger) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		start := time.Now()
		err := next(srv, strictStream{stream})
		var e *quotaerr.Error
		if !errors.As(err, &e) {
			return err
		}
		logFailure(stream.Context(), log, info.FullMethod, start, err)
		return errtable.ToStatus(stream.Context(), err).Err()
	}
}

func countCalls(m *metrics) grpc.UnaryServerInterceptor {
	return func(
		ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
	) (any, error) {
		resp, err := next(ctx, req)
		m.calls.WithLabelValues(info.FullMethod, status.Code(err).String()).Inc()
		return resp, err
	}
}

func countStreams(m *metrics) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		err := next(srv, stream)
		if _, known := access[info.FullMethod]; known { // others are named by whoever calls
			m.calls.WithLabelValues(info.FullMethod, status.Code(err).String()).Inc()
		}
		return err
	}
}

func logAndTranslate(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(
		ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
	) (any, error) {
		start := time.Now()
		resp, err := next(ctx, req)
		if err == nil {
			return resp, nil
		}
		logFailure(ctx, log, info.FullMethod, start, err)
		return nil, errtable.ToStatus(ctx, err).Err()
	}
}

// logFailure logs a defect loudly and what callers bring about only when asked for.
func logFailure(ctx context.Context, log *slog.Logger, method string, start time.Time, err error) {
	level := slog.LevelDebug
	if quotaerr.ReasonOf(err) == quotaerr.Internal {
		level = slog.LevelError
	}
	if log.Enabled(ctx, level) {
		log.Log(ctx, level, "request failed", "method", method, "took", time.Since(start),
			"reason", string(quotaerr.ReasonOf(err)), "err", err)
	}
}

// caught turns a panic into an error that reads as a defect and never as an answer.
func caught(ctx context.Context, m *metrics, log *slog.Logger, p any) error {
	m.panics.Inc()
	log.ErrorContext(ctx, "panic while serving a request", "panic", p, "stack", string(debug.Stack()))
	return quotaerr.Wrap(quotaerr.Internal, fmt.Errorf("panic: %v", p), "")
}

// refuseUnknown answers calls of services and methods that do not exist.
func refuseUnknown(any, grpc.ServerStream) error { return errUnknownMethod }
