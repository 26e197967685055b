"""A tour of the instruments: every example of the ancestor's manual, in Python.

    python examples/seed_tour.py [FOLDER]

Files go to FOLDER, by default `./tour`. Nine parts need no model and no torch; the tenth trains one, twice: with
the instruments fed by hand, and with a session that feeds them by itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from stethoscope import (
    DebugConfig,
    DebugSession,
    DebugVisualizer,
    HookAction,
    HookBuilder,
    HookTrigger,
    ModelArchitectureInfo,
    ModelPerformanceMetrics,
    TerminalVisualizer,
    VisualizationConfig,
    debug_session,
    watch,
)


def basic_usage() -> None:
    """A session without a model: look at a tensor, record a gradient, ask for the report."""
    session = debug_session()
    session.start()
    session.tensor_inspector.inspect_tensor(np.linspace(0.0, 1.0, 1000), "my_tensor", "layer_1", "forward")
    session.gradient_debugger.record_gradient_flow("layer_1", [0.01, 0.02, 0.015, 0.008])
    report = session.stop()
    print("basic usage:", report.summary()["tensors"], report.summary()["gradients"]["overall_health"])


def advanced_configuration(folder: Path) -> None:
    """Every setting by name."""
    config = DebugConfig(
        enable_tensor_inspection=True,
        enable_gradient_debugging=True,
        enable_model_diagnostics=True,
        enable_visualization=True,
        max_tracked_tensors=1000,
        max_gradient_history=200,
        output_dir=str(folder / "debug_output"),
        sampling_rate=0.1,
    )
    session = DebugSession(config)
    print("configuration:", session.gradient_debugger.max_history, session.tensor_inspector.max_tracked_tensors)


def debugging_hooks() -> None:
    """A rule: look at whatever an attention layer gives, a hundred times at most."""
    session = debug_session()
    hook = (
        HookBuilder("Layer Monitor")
        .trigger(HookTrigger.EveryForward)
        .action(HookAction.InspectTensor)
        .layer_patterns(["attention.*"])
        .max_executions(100)
        .build()
    )
    hook_id = session.hooks.register_hook(hook)
    results = session.hooks.execute_hooks("attention_layer_1", [1.0, 2.0, 3.0, 4.0], [2, 2], True, None)
    stats = session.tensor_inspector.get_tensor_info(results[0].values[0]).stats
    print("hooks:", hook_id, results[0].status, stats.shape, stats.mean)
    print("hooks, another layer:", session.hooks.execute_hooks("mlp_1", [1.0], [1], True, None))


def visualization(folder: Path) -> None:
    """Plots to files, and several of them on one page."""
    visualizer = DebugVisualizer(VisualizationConfig(output_directory=folder / "plots"))
    visualizer.plot_tensor_distribution("weights", [1.0, 2.0, 1.5, 3.0, 2.5, 1.8, 2.2], 10)
    visualizer.plot_gradient_flow("layer1", [0, 1, 2, 3, 4], [0.1, 0.08, 0.06, 0.04, 0.03])
    names = visualizer.get_plot_names()
    dashboard = visualizer.create_dashboard(names)
    print("plots:", names, dashboard.path.name, len(dashboard.html) > 10_000)


def tensor_inspector() -> None:
    """What one tensor is like."""
    session = debug_session()
    my_tensor = np.array([[-1.0, 0.0, 1.0], [2.0, float("nan"), 4.0]])
    tensor_id = session.tensor_inspector.inspect_tensor(my_tensor, "layer_weights", "linear_1", "parameter")
    info = session.tensor_inspector.get_tensor_info(tensor_id)
    print("tensor:", info.stats.mean, info.stats.nan_count, info.stats.l2_norm)
    print("tensor:", info.alerts[0])


def gradient_debugger() -> None:
    """How healthy a gradient is, and why."""
    session = debug_session()
    session.gradient_debugger.record_gradient_flow("transformer_block_0", [1e-9, -2e-9, 1e-9])
    analysis = session.gradient_debugger.analyze_gradient_flow()
    print("gradients:", analysis.overall_health, [reason.text for reason in analysis.reasons])


def model_diagnostics() -> None:
    """What the model is made of, and how training goes."""
    session = debug_session()
    session.model_diagnostics.record_architecture(
        ModelArchitectureInfo(
            total_parameters=125_000_000,
            trainable_parameters=125_000_000,
            model_size_mb=500.0,
            layer_count=24,
        )
    )
    for step in range(100):
        session.model_diagnostics.record_performance(
            ModelPerformanceMetrics(training_step=step, loss=0.5 + 2.0 * 0.95**step, accuracy=0.85, learning_rate=1e-4)
        )
    report = session.model_diagnostics.generate_report()
    print("diagnostics:", report.dynamics.convergence_status, report.dynamics.training_stability)
    print("diagnostics:", report.health.score, report.architecture.layer_count)


def performance_profiler() -> None:
    """Timers, layers, and what holds training up."""
    session = debug_session()
    profiler = session.profiler
    profiler.start_timer("layer_forward")
    duration = profiler.end_timer("layer_forward")
    profiler.record_layer_execution(
        "transformer_block_0",
        "TransformerBlock",
        forward_time=0.6,
        backward_time=0.2,
        memory_usage=1 << 20,
        parameter_count=7_000_000,
    )
    found = profiler.bottlenecks()[0]
    print("profiler:", duration >= 0.0, found.type, found.severity, found.location)


def terminal_visualization() -> None:
    """The same plots where there is no screen."""
    terminal = TerminalVisualizer(80, 24)
    print(terminal.ascii_histogram([1.0, 2.0, 1.5, 3.0, 2.5, 1.8, 2.2], 10))
    print(terminal.ascii_line_plot([0, 1, 2, 3, 4], [2.3, 1.9, 1.6, 1.5, 1.45], "Training Loss"))


def integration_with_training(folder: Path, num_steps: int = 60) -> None:
    """A training loop that feeds the instruments by hand, and one where the session does it."""
    import torch

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
        return model, torch.optim.SGD(model.parameters(), lr=0.5)

    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    labels = (inputs.sum(1) > 0).long()
    criterion = torch.nn.CrossEntropyLoss()

    model, optimizer = make()
    session = debug_session()
    session.start()
    for step in range(num_steps):
        output = model(inputs)
        session.tensor_inspector.inspect_tensor(output, "model_output", None, "forward")
        loss = criterion(output, labels)
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                session.gradient_debugger.record_gradient_flow(name, parameter.grad)
        optimizer.step()
        session.model_diagnostics.record_performance(
            ModelPerformanceMetrics(
                training_step=step,
                loss=loss.item(),
                accuracy=(output.argmax(1) == labels).float().mean().item(),
                learning_rate=optimizer.param_groups[0]["lr"],
                batch_size=len(inputs),
            )
        )
    by_hand = session.stop().summary()

    model, optimizer = make()
    with watch(model, optimizer, dir=str(folder / "runs"), quiet=True, companion="inline", every=1) as session:
        for _ in range(num_steps):
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()
        report = session.stop()
    by_itself = report.summary()
    for name, summary in (("by hand", by_hand), ("by itself", by_itself)):
        gradients, training = summary["gradients"], summary["training"]
        print(
            f"training, {name}:",
            gradients["num_layers"],
            gradients["overall_health"],
            training["num_records"],
            training["convergence"],
            training["stability"],
        )
    print("training, findings:", by_itself["findings"])


def main(folder: Path) -> None:
    """The whole tour, in the order of the manual."""
    basic_usage()
    advanced_configuration(folder)
    debugging_hooks()
    visualization(folder)
    tensor_inspector()
    gradient_debugger()
    model_diagnostics()
    performance_profiler()
    terminal_visualization()
    integration_with_training(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tour"))
