package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/quorate/quorate/bench"
)

//go:embed rolling.lua
var rolling string

// rollingRedis is an exact rolling log in Redis, over pipelines.
type rollingRedis struct {
	client rueidis.Client
	script *rueidis.Lua
	args   []string
}

// Do has one check decided by the script.
func (r *rollingRedis) Do(ctx context.Context, _ int, principal string) (bench.Outcome, error) {
	n, err := r.script.Exec(ctx, r.client, []string{principal}, r.args).AsInt64()
	switch {
	case err != nil:
		return bench.Failed, err
	case n == 1:
		return bench.Allowed, nil
	}
	return bench.Denied, nil
}

// startRedis runs one server, which syncs each write or keeps nothing.
func startRedis(sync bool) func(context.Context, place) (*server, error) {
	return func(ctx context.Context, at place) (*server, error) {
		s := &server{}
		args := []string{
			"--port", fmt.Sprint(at.port), "--bind", "127.0.0.1", "--dir", at.dir, "--save", "", "--appendonly", "no",
			"--daemonize", "no",
		}
		if sync {
			args = append(args, "--appendonly", "yes", "--appendfsync", "always")
		}
		if err := s.run(at, "redis", "redis-server", nil, args...); err != nil {
			return nil, err
		}
		r := &rollingRedis{script: rueidis.NewLuaScript(rolling), args: []string{
			fmt.Sprint(limit), fmt.Sprint(window.Microseconds()), fmt.Sprint(window.Milliseconds()),
		}}
		err := s.await(ctx, func(ctx context.Context) (err error) {
			r.client, err = rueidis.NewClient(rueidis.ClientOption{
				InitAddress: []string{at.addr(0)}, DisableCache: true, AlwaysPipelining: true,
			})
			if err != nil {
				return err
			}
			if err = r.client.Do(ctx, r.client.B().Ping().Build()).Error(); err != nil {
				r.client.Close()
			}
			return err
		})
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.closing = append(s.closing, r.client.Close)
		s.Target = r
		return s, nil
	}
}
